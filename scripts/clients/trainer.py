"""Hugging Face's Trainer: killed in the middle of a run, resumed from its newest checkpoint, compared with a whole run.

Relies on transformers. The idea: training is deterministic, so a run that was resumed ends with the weights of one that
was not. The Trainer finds the newest checkpoint by the names of folders, and removes old ones by their times.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

STEPS, EVERY, KILLED_AT, KEPT = 12, 3, 8, 2


class Text(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, number):
        tokens = (torch.arange(32) * (number + 3)) % 100
        return {"input_ids": tokens, "labels": tokens}


class Killed(TrainerCallback):
    def on_step_end(self, _arguments, state, _control, **_):
        if state.global_step == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)


def train(folder, dies=False, resumes=False):
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=100, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
    )
    arguments = TrainingArguments(
        folder, max_steps=STEPS, save_steps=EVERY, save_total_limit=KEPT, per_device_train_batch_size=4,
        report_to=[], use_cpu=True, seed=1, logging_steps=1000,
    )  # fmt: skip
    callbacks = [Killed()] if dies else []
    trainer = Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=Text(), callbacks=callbacks)
    trainer.train(resume_from_checkpoint=resumes)
    return trainer.model.state_dict()


def checkpoints(folder):
    return sorted(path.name for path in Path(folder).glob("checkpoint-*"))


def main():
    if sys.argv[1:] == ["dies"]:
        train("run", dies=True)
    ended = subprocess.run([sys.executable, __file__, "dies"]).returncode
    assert ended == -signal.SIGKILL, ended
    assert checkpoints("run") == ["checkpoint-3", "checkpoint-6"], checkpoints("run")
    resumed, whole = train("run", resumes=True), train("whole")
    assert checkpoints("run") == checkpoints("whole") == ["checkpoint-12", "checkpoint-9"], checkpoints("run")
    assert resumed.keys() == whole.keys()
    assert all(torch.equal(resumed[name], whole[name]) for name in whole), "the resumed run ended elsewhere"


main()
