"""A training with Lightning that dies on the way: lightning_training.py FOLDER KILL_AT OUTPUT [STEPS DEVICES].

It goes on from the newest checkpoint.
"""

import os
import signal
import sys
import warnings

import fsspec
import lightning
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint

from stdchk.torch.lightning import CheckpointIO

fsspec.register_implementation("stdchk", "stdchk.fs.StdchkFileSystem", clobber=True)


class Model(lightning.LightningModule):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(width, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, width))

    def training_step(self, batch, number):
        # Lightning begins the data anew in an epoch that it goes on with: what is learnt depends on the step alone here.
        x = torch.randn(8, 32, generator=torch.Generator().manual_seed(self.global_step * 2 + self.global_rank))
        loss = (self.net(x) - x).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Kill(Callback):
    def __init__(self, at: int) -> None:
        self.at = at

    def on_train_batch_end(self, trainer, *rest) -> None:
        if trainer.global_step == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    folder, kill_at, output = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    steps, devices = map(int, sys.argv[4:] or (24, 1))
    warnings.simplefilter("ignore")
    lightning.seed_everything(1, verbose=False)
    dirpath = f"stdchk://{folder}"
    stop = EarlyStopping("loss", patience=100, check_on_train_epoch_end=True)
    saved = ModelCheckpoint(dirpath, monitor="loss", save_top_k=2, every_n_train_steps=3, save_last=True)
    checkpoints = CheckpointIO()
    data = torch.utils.data.TensorDataset(torch.randn(64, 32))
    trainer = lightning.Trainer(
        max_steps=steps, accelerator="cpu", devices=devices, strategy="ddp" if devices > 1 else "auto",
        logger=False, enable_progress_bar=False, enable_model_summary=False,
        plugins=[checkpoints], callbacks=[saved, stop, Kill(kill_at)],
    )  # fmt: skip
    newest = checkpoints.newest(dirpath)
    model = Model()
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=8), ckpt_path=newest, weights_only=False)
    assert trainer.global_step == steps
    if trainer.is_global_zero:
        torch.save({"newest": newest, "model": model.state_dict(), "optimizer": trainer.optimizers[0].state_dict()}, output)


if __name__ == "__main__":
    main()
