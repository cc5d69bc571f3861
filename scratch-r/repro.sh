#!/bin/bash
# repro.sh BINARY CYCLES : six separate writer processes
set -u
bin=$1 cycles=$2; d=$(mktemp -d /tmp/roles-XXXX); export STDCHK_DATA=$d/pool
mkdir $d/mnt; timeout 100 $bin up --benefactors 4 --donate 4GiB --floor 1MiB --mount $d/mnt >/dev/null || exit 1
mkdir $d/mnt/app; touch $d/go
head -c 1000000 /dev/urandom > $d/src
for w in 1 2 3 4 5 6; do (cd $d/mnt/app; i=0; while [ -e $d/go ]; do i=$((i+1)); cp $d/src w$w-$i 2>>$d/err || echo "$(date +%T) FAIL w$w-$i" >> $d/err; done; echo $i > $d/n$w) & done
for c in $(seq $cycles); do
  sleep 0.$((RANDOM%10))
  pid=$(readlink $d/pool/run/manager.pid 2>/dev/null | cut -d' ' -f1); [ -n "$pid" ] || pid=$(cut -d' ' -f1 $d/pool/run/manager.pid)
  kill -9 $pid; t=$(date +%s%N)
  timeout 200 $bin up ${UPARGS:-} > $d/up.out 2>&1 || { echo "up failed: $(cat $d/up.out)"; }
  echo "cycle $c up $(( ($(date +%s%N)-t)/1000000 )) ms"
done
rm $d/go; wait
cat $d/err 2>/dev/null | head -5; cat $d/n? | tr '\n' ' '; echo
bad=0; for f in $d/mnt/app/w*; do cmp -s $f $d/src || { bad=$((bad+1)); echo bad $f; }; done; echo "bad $bad of $(ls $d/mnt/app | wc -l)"
timeout 100 $bin down; chattr -i $d/mnt 2>/dev/null; rm -rf $d
