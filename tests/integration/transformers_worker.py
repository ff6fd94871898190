"""A process of test_training_frameworks.py. usage: transformers_worker.py FOLDER KIND..."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import set_seed

from fastload.integrations.transformers import TrainerMixin
from tests.integration.frameworks import (
    BATCH,
    COUNT,
    Plain,
    Trace,
    augmented,
    check,
    make_data,
    make_model,
    note,
    of_all_ranks,
    world,
)


class Config(PreTrainedConfig):
    model_type = "tiny"


class Model(PreTrainedModel):
    config_class = Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.model = make_model()
        self.post_init()

    def forward(self, number: Any, image: Any, labels: Any = None) -> dict[str, Any]:
        logits = self.model(image)
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Traced(TrainerMixin, Trainer):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.trace: Trace = []

    def make_train_loader(self, dataset: Any, **changes: Any) -> Any:
        if isinstance(dataset, Plain):
            changes["seed_by"] = "sample"
        return super().make_train_loader(dataset, **changes)

    def training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
        assert self.state.epoch is not None
        note(self.trace, int(self.state.epoch + 1e-6), inputs)
        return super().training_step(model, inputs, *rest)


class Stop(TrainerCallback):
    """Saves after a step, and stops there."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if state.global_step == self.at:
            control.should_save = control.should_training_stop = True


def train(kind: str, path: Path, stop: int, resume: Path | None, accumulate: int = 1) -> Trace:
    set_seed(3 if resume is None else 4)  # global generators do not matter
    args = TrainingArguments(
        output_dir=str(path.parent / kind),
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=accumulate,
        num_train_epochs=2,
        dataloader_num_workers=1,
        save_strategy="steps" if stop < 0 else "no",
        save_steps=1000,
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=5,
        average_tokens_across_devices=False,
    )
    dataset = augmented(path) if kind == "native" else Plain()
    trainer = Traced(Model(Config()), args, train_dataset=dataset, callbacks=[Stop(stop)])
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    assert trainer.train_loader is not None
    expected = "native" if kind == "native" else "torch"
    assert trainer.train_loader.stats()["engine"] in (expected, "python")
    return trainer.trace


def check_resuming(kind: str, path: Path) -> None:
    batches = -(-COUNT // (BATCH * world()))
    for accumulate in (1, 2):
        steps = -(-batches // accumulate)
        stop = steps + 2
        whole = train(kind, path, -1, None, accumulate)
        before = train(kind, path, stop, None, accumulate)
        after = train(kind, path, -1, path.parent / kind / f"checkpoint-{stop}", accumulate)
        check(whole, before, after)


def check_evaluation(path: Path) -> None:
    """The Trainer's own loader takes a fastload dataset as it is."""
    args = TrainingArguments(
        output_dir=str(path.parent / "out"),
        per_device_eval_batch_size=BATCH,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Traced(Model(Config()), args, eval_dataset=augmented(path))
    found = trainer.predict(augmented(path))
    assert found.label_ids.tolist() == [number % 2 for number in range(COUNT)]
    assert of_all_ranks([1]) == [1] * world()


def main() -> None:
    folder, *kinds = sys.argv[1:]
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module="transformers|torch")
    if world() > 1:
        dist.init_process_group("gloo")
    if not dist.is_initialized() or dist.get_rank() == 0:
        make_data(Path(folder))
    if dist.is_initialized():
        dist.barrier()
    path = Path(folder) / "data.fl"
    for kind in kinds:
        check_resuming(kind, path)
    check_evaluation(path)
    print("all is well")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
