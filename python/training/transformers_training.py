"""A training with Hugging Face's Trainer that dies on the way: transformers_training.py FOLDER KILL_AT OUTPUT ARGUMENTS.

It goes on from the newest checkpoint. It prints and keeps the loss of each step.
"""

import json
import os
import signal
import sys

import torch
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments

from stdchk.torch.transformers import Checkpoints


class Model(torch.nn.Module):
    """With dropout, so that random numbers count."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(32, 64), torch.nn.BatchNorm1d(64), torch.nn.Dropout(0.3), torch.nn.Linear(64, 32)
        )

    def forward(self, x, labels):
        found = self.net(x)
        return {"loss": (found - labels).square().mean(), "logits": found}


class Kill(TrainerCallback):
    def __init__(self, at: int) -> None:
        self.at = at

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    folder, kill_at, output, arguments = sys.argv[1], int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
    torch.manual_seed(1)
    data = [{"x": x, "labels": x * 2} for x in torch.randn(60, 32)]
    given = {
        "output_dir": f"{output}.folder", "num_train_epochs": 3,
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2,
        "logging_steps": 1, "learning_rate": 1e-2, "warmup_steps": 3, "use_cpu": True, "report_to": [], "disable_tqdm": True,
        "save_strategy": "steps", "save_steps": 3, "eval_strategy": "steps", "eval_steps": 2, "seed": 7,
        "metric_for_best_model": "loss",
    }  # fmt: skip
    trainer = Trainer(
        Model(), TrainingArguments(**given | arguments), train_dataset=data, eval_dataset=data[:8],
        callbacks=[Kill(kill_at), EarlyStoppingCallback(early_stopping_patience=100)],
    )  # fmt: skip
    checkpoints = Checkpoints(folder)
    checkpoints.train(trainer)
    stopping = next(one for one in trainer.callback_handler.callbacks if isinstance(one, EarlyStoppingCallback))
    if trainer.args.process_index == 0:
        found = {
            "model": trainer.model.state_dict(), "optimizer": trainer.optimizer.state_dict(),
            "scheduler": trainer.lr_scheduler.state_dict(),
            "loss": [(one["step"], one["loss"]) for one in trainer.state.log_history if "loss" in one],
            "eval": [(one["step"], one["eval_loss"]) for one in trainer.state.log_history if "eval_loss" in one],
            "patience": stopping.early_stopping_patience_counter, "from": checkpoints.loaded.step if checkpoints.loaded else None,
            "files": os.listdir(trainer.args.output_dir) if os.path.isdir(trainer.args.output_dir) else [],
        }  # fmt: skip
        torch.save(found, output)


if __name__ == "__main__":
    main()
