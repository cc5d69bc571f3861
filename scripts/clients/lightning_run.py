"""Lightning: a training with `ModelCheckpoint(dirpath="stdchk://...")` is killed, resumed from its last checkpoint, and ends as one that wasn't.

Relies on Lightning and on the package `stdchk`; the pool is the one that STDCHK_DATA names. `lightning_run.py FOLDER`.
"""

import os
import subprocess
import sys

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

import stdchk

STEPS, EVERY, DIES_AT = 12, 2, 7  # an epoch has as many steps as lie between two checkpoints


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)

    def training_step(self, batch, _):
        return (self.layer(batch) - batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)

    def train_dataloader(self):
        generator = torch.Generator().manual_seed(3)
        return torch.utils.data.DataLoader(torch.randn(EVERY * 8, 64, generator=generator), batch_size=8)


class Dies(Callback):
    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == DIES_AT:
            os._exit(9)


def train(where, callbacks=(), resumes=None):
    lightning.seed_everything(1, verbose=False)
    model = Model()
    keeps = ModelCheckpoint(dirpath=where, filename="{step}", every_n_train_steps=EVERY, save_top_k=-1)
    trainer = lightning.Trainer(
        max_steps=STEPS, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[keeps, *callbacks],
    )  # fmt: skip
    trainer.fit(model, ckpt_path=resumes)
    return model.layer.weight.detach()


def main():
    folder = sys.argv[1]
    url = f"stdchk://{folder}"
    if sys.argv[2:] == ["dies"]:
        train(url, [Dies()])
    died = subprocess.run([sys.executable, __file__, folder, "dies"])
    assert died.returncode == 9, died.returncode
    names = sorted(entry.name for entry in stdchk.connect()[folder].ls())
    assert names == [f"step={step}.ckpt" for step in range(EVERY, DIES_AT, EVERY)], names
    resumed = train(url, resumes=f"{url}/{names[-1]}")
    assert torch.equal(resumed, train("undisturbed"))


main()
