"""``fastload plan``: what an epoch asks of ranks and nodes, at any scale, before any of it runs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from fastload.cli.look import open_split
from fastload.cli.output import common_options, new_table, plural, print_json, print_table, size_text, warn

if TYPE_CHECKING:
    from fastload.sampling.preview import Layout, Preview
    from fastload.sampling.window import Window

COUNT = click.IntRange(min=1)


def _number(text: str) -> int:
    """Return an integer that may have underscores or commas, as people write large ones."""
    try:
        number = int(text.replace(",", "_"))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a whole number") from None
    if number < 1:
        raise click.BadParameter(f"{text} is below 1")
    return number


@click.command(short_help="Say what an epoch asks of ranks and nodes.")
@click.argument("dataset", required=False)
@click.option("--split", help="Which split; the only one, or train, if not given.")
@click.option("--records", type=_number, metavar="N", help="Instead of DATASET: so many records,")
@click.option("--shards", type=_number, metavar="N", help="in so many shards of one size,")
@click.option(
    "--bytes", "size", metavar="SIZE", help="of so many bytes altogether (an integer, or text like 1.5TB)."
)
@click.option("--ranks", type=COUNT, default=1, show_default=True, help="Ranks (processes that train).")
@click.option("--nodes", type=COUNT, help="Nodes that the ranks are on, as many on each.")
@click.option("--ranks-per-node", type=COUNT, help="Ranks on a node, instead of --nodes.")
@click.option("--batch-size", type=COUNT, help="Samples in a batch of one rank.  [default: 1]")
@click.option("--global-batch-size", type=COUNT, help="Samples in a batch of all ranks, instead.")
@click.option("--no-shuffle", is_flag=True, help="In the order of the dataset.")
@click.option("--shuffle-window", metavar="SIZE", help='Shuffle within so many bytes ("512MB").')
@click.option("--drop-last", is_flag=True, help="Leave out a last batch that is not full.")
@click.option("--no-pad", is_flag=True, help="Leave ranks uneven at the end instead of padding.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--epoch", type=click.IntRange(min=0), default=0, show_default=True)
@common_options
def plan(
    dataset: str | None,
    split: str | None,
    records: int | None,
    shards: int | None,
    size: str | None,
    ranks: int,
    nodes: int | None,
    ranks_per_node: int | None,
    batch_size: int | None,
    global_batch_size: int | None,
    no_shuffle: bool,
    shuffle_window: str | None,
    drop_last: bool,
    no_pad: bool,
    seed: int,
    epoch: int,
    as_json: bool,
) -> None:
    """Say what an epoch over DATASET asks of each rank and node: batches, samples, bytes, pads, shards that
    are opened, cache and reads. Nothing is read but the shard table.

    Without DATASET, --records, --shards and --bytes describe one, of any size.
    """
    from fastload.sampling.preview import preview
    from fastload.sampling.share import Share

    if batch_size is not None and global_batch_size is not None:
        raise click.UsageError("--batch-size and --global-batch-size exclude each other")
    if no_shuffle and shuffle_window is not None:
        raise click.UsageError("--no-shuffle and --shuffle-window exclude each other")
    layout = _layout(dataset, split, records, shards, size)
    window = _window(layout, shuffle_window)
    on_node = _ranks_per_node(ranks, nodes, ranks_per_node)
    share = Share(
        global_batch_size if global_batch_size is not None else ranks * (batch_size or 1),
        world=ranks,
        tail="uneven" if no_pad else "pad",
        drop_last=drop_last,
    )
    found = preview(
        layout, share, node_ranks=on_node, shuffle=not no_shuffle, window=window, seed=seed, epoch=epoch
    )
    if as_json:
        print_json(_json(layout, share.global_batch, window, ranks, on_node, found))
        return
    shuffled = "in order" if no_shuffle else "shuffled"
    if window is not None:
        shuffled += f" in {plural(window.streams, 'stream')}, {plural(window.block, 'record')} at once each"
    where = f"{plural(-(-ranks // on_node), 'node')} of {plural(on_node, 'rank')}"
    held = f"{size_text(layout.bytes)} in {plural(len(layout.chunks), 'shard')}"
    click.echo(
        f"{plural(layout.records, 'record')}, {held}, on {where}, {shuffled}, seed {seed}, epoch {epoch}\n"
    )
    _print(layout, share.global_batch, found)


def _layout(
    dataset: str | None, split: str | None, records: int | None, shards: int | None, size: str | None
) -> Layout:
    import numpy as np

    from fastload.format import parse_size
    from fastload.sampling.preview import Layout

    described = [name for name, value in (("records", records), ("shards", shards), ("bytes", size)) if value]
    if dataset is not None:
        if described:
            raise click.UsageError(f"--{described[0]} describes a dataset where none is named")
        table = open_split(dataset, split).table
        starts = np.unique(table.starts.astype(np.int64))  # without shards of no records
        return Layout(table.records, table.total_bytes, starts[:-1])
    if records is None or size is None:
        raise click.UsageError("name a DATASET, or describe one with --records, --shards and --bytes")
    # Two numbers at least: what text holds may be an integer.
    total = parse_size(int(size) if size.isdigit() else size)
    return Layout.even(records, shards or max(1, min(records, round(total / 256_000_000))), total)


def _window(layout: Layout, size: str | None) -> Window | None:
    from fastload.format import parse_size
    from fastload.sampling.window import Window

    if size is None:
        return None
    return Window.resolve(
        parse_size(size), layout.chunks, count=layout.records, record_bytes=layout.record_bytes
    )


def _ranks_per_node(ranks: int, nodes: int | None, ranks_per_node: int | None) -> int:
    if nodes is not None and ranks_per_node is not None:
        raise click.UsageError("--nodes and --ranks-per-node exclude each other")
    if nodes is not None:
        if ranks % nodes:
            raise click.UsageError(f"{nodes} nodes cannot have as many of {ranks} ranks each")
        return ranks // nodes
    return min(ranks, ranks_per_node or ranks)


def _json(
    layout: Layout, batch: int, window: Window | None, ranks: int, on_node: int, found: Preview
) -> dict[str, Any]:
    return {
        "records": layout.records,
        "bytes": layout.bytes,
        "shards_in_all": len(layout.chunks),
        "ranks": ranks,
        "ranks_per_node": on_node,
        "global_batch_size": batch,
        "window": None if window is None else {"streams": window.streams, "block": window.block},
        **dataclasses.asdict(found),
    }


def _print(layout: Layout, batch: int, found: Preview) -> None:
    def span(pair: tuple[int, int], unit: float | None = None) -> str:
        texts = [f"{value:,}" if unit is None else size_text(value * unit) for value in pair]
        return texts[0] if texts[0] == texts[1] else " to ".join(texts)

    each = layout.record_bytes
    read = max(found.node_samples) * each / max(1, found.reads)
    table = new_table("an epoch", "of all", "of a rank", "of a node", right=(1, 2, 3))
    table.add_row("batches", f"{found.batches:,} of {batch:,}", f"{found.batches:,}", "")
    table.add_row("samples", f"{layout.records:,}", span(found.rank_samples), span(found.node_samples))
    table.add_row(
        "bytes", size_text(layout.bytes), span(found.rank_samples, each), span(found.node_samples, each)
    )
    table.add_row("pads", f"{found.pads:,}", "", "")
    table.add_row("shards opened", f"{len(layout.chunks):,}", "", f"{found.shards:,}")
    table.add_row("shards at once", "", "", f"{found.shards_at_once:,}")
    table.add_row("cache", "", "", size_text(found.cache_bytes))
    table.add_row("reads", "", "", f"{found.reads:,} of {size_text(read)}")
    print_table(table)
    for note in found.notes:
        warn(note)
