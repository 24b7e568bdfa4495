"""Uses its dependencies on the driver and on executors; has work for two executors, and then for none."""

import glob
import socket
import time
import zipfile

from pyspark import SparkContext, SparkFiles


def told():
    try:
        socket.gethostbyname("go")
        return True
    except OSError:
        return False


def use(_):
    import signals

    jar = glob.glob(SparkFiles.getRootDirectory() + "/*greeting*.jar")[0]
    with open(SparkFiles.get("words.txt")) as words:
        found = zipfile.ZipFile(jar).read("greeting.txt").decode(), signals.COLOUR, words.read()
    return tuple(text.strip() for text in found)


def work(_):
    time.sleep(3)
    return socket.gethostname()


sc = SparkContext()
loader = sc._jvm.java.lang.Thread.currentThread().getContextClassLoader()
greeting = bytes(loader.getResourceAsStream("greeting.txt").readAllBytes()).decode().strip()
print(f"the driver's classes say: {greeting}", flush=True)
jar, module, words = sc.parallelize([0], 1).map(use).first()
print(f"an executor's jar says: {jar}", flush=True)
print(f"an executor's module says: {module}", flush=True)
print(f"an executor's file says: {words}", flush=True)

# A single executor always leaves a backlog.
hosts = set()
for _ in range(20):
    hosts |= set(sc.parallelize(range(4), 4).map(work).collect())
    if len(hosts) == 2:
        break
print(f"hosts: {len(hosts)}", flush=True)
while not told():
    time.sleep(0.5)
sc.stop()
