"""The same program as calls.c."""

import os

import stdchk_files

with open("data", "w") as stream:
    stream.write("one\n")
    stream.flush()
    here = stdchk_files.checkpoint()
    stream.write("two\n")
open("other", "w").close()
stdchk_files.restore(here)
print("T" if stdchk_files.active() else "F", os.path.getsize("data"), "T" if os.path.exists("other") else "F")
