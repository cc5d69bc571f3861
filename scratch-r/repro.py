# repro.py BINARY CYCLES: six threads of one program write, and the program starts the manager again
import os, sys, subprocess, tempfile, threading, time, random, pathlib
binary, cycles = sys.argv[1], int(sys.argv[2])
d = pathlib.Path(tempfile.mkdtemp(prefix="roles-")); os.environ["STDCHK_DATA"] = str(d / "pool")
mnt = d / "mnt"; mnt.mkdir()
run = lambda *a: subprocess.run([binary, *a], check=False, stdout=subprocess.DEVNULL)
run("up", "--benefactors", "4", "--donate", "4GiB", "--floor", "1MiB", "--mount", str(mnt))
(mnt / "app").mkdir(); go = [True]; errors = []; counts = [0] * 6
data = os.urandom(1000000)
def write(w):
    while go[0]:
        try:
            with open(mnt / "app" / f"w{w}-{counts[w]}", "wb") as f:
                for at in range(0, len(data), 100000): f.write(data[at:at + 100000])
        except OSError as e: errors.append((time.strftime("%T"), w, counts[w], str(e)))
        counts[w] += 1
threads = [threading.Thread(target=write, args=(w,)) for w in range(6)]
[t.start() for t in threads]
def pid(role):
    p = d / "pool/run" / f"{role}.pid"
    text = os.readlink(p) if p.is_symlink() else p.read_text()
    return int(text.split()[0])
for c in range(cycles):
    time.sleep(random.random())
    os.kill(pid("manager"), 9); t = time.time(); run("up", *sys.argv[3:]); print(f"cycle {c} up {time.time()-t:.2f} s", flush=True)
go[0] = False; [t.join() for t in threads]
print(errors[:5], counts)
bad = [p for p in (mnt / "app").iterdir() if p.read_bytes() != data]; print("bad", len(bad))
run("down"); subprocess.run(["chattr", "-i", mnt], stderr=subprocess.DEVNULL); subprocess.run(["rm", "-rf", d])
