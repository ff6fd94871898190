"""fastload: training-data loading for PyTorch and its neighbours."""
