"""Other loaders set up for the jobs, each the way its own documentation recommends."""
