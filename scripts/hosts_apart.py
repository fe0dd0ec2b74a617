"""Executes docs/deploy.md on hosts that are namespaces of this machine, connected by a slow and lossy network.

    sudo python3 scripts/hosts_apart.py target/release/ebbflow [--delay 0.1] [--loss 0.02] [--cut 120] [--rounds 100]

Needs Linux, root, and nothing else. Blocks of the guide that begin with "# on HOST" run on that host,
in its own folder; scp copies between these folders. This program carries packets from one host's TUN device to
another's: each way takes --delay seconds, and a share of --loss is dropped. Once all clients are connected and rounds
go on, the host of three clients is disconnected for --cut seconds. Succeeds if every command of the guide does.
"""
import argparse, ctypes, fcntl, heapq, os, random, re, select, shutil, struct, subprocess, sys, tempfile, threading, time

ADDRESSES = {"the server": "10.77.0.1", "10.77.0.2": "10.77.0.2", "10.77.0.3": "10.77.0.3"}
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
LIBC = ctypes.CDLL(None, use_errno=True)

options = argparse.ArgumentParser()
options.add_argument("program")
options.add_argument("--guide", default=os.path.join(os.path.dirname(__file__), "../docs/deploy.md"))
options.add_argument("--delay", type=float, default=0.1)
options.add_argument("--loss", type=float, default=0.02)
options.add_argument("--cut", type=float, default=120)
options.add_argument("--rounds", type=int, default=100)
options = options.parse_args()


class Host:
    """A network, a process table and a folder of its own."""

    def __init__(self, name, folder):
        self.name, self.address = name, ADDRESSES[name]
        self.folder = os.path.join(folder, self.address)
        os.mkdir(self.folder)
        self.keeper = subprocess.Popen(["unshare", "--net", "--pid", "--mount-proc", "--fork", "--kill-child", "sleep", "infinity"])
        children = f"/proc/{self.keeper.pid}/task/{self.keeper.pid}/children"
        self.pid = wait_for(lambda: open(children).read().split())[0]
        wait_for(lambda: open(f"/proc/{self.pid}/comm").read().strip() == "sleep")
        self.tun = in_network(self.pid, open_tun)
        self.run(f"ip link set lo up; ip addr add {self.address}/24 dev wan; ip link set wan up mtu 1400")
        self.is_cut = False

    def command(self, text):
        return ["nsenter", "-t", self.pid, "-n", "-p", "-m", f"--wd={self.folder}", "bash", "-e", "-u", "-o", "pipefail", "-c", text]

    def run(self, text):
        return subprocess.run(self.command(text), check=True, text=True, stdout=subprocess.PIPE).stdout

    def start(self, text, log):
        return subprocess.Popen(self.command(text), stdout=log, stderr=log)


def open_tun():
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH", b"wan", IFF_TUN | IFF_NO_PI))
    return tun


def in_network(pid, what):
    """Calls `what` in the network of a process."""
    own, theirs = os.open("/proc/self/ns/net", os.O_RDONLY), os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        enter(theirs)
        return what()
    finally:
        enter(own)


def enter(network):
    if LIBC.setns(network, 0):
        raise OSError(ctypes.get_errno(), "setns; this needs root")


def wait_for(what, seconds=60):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if found := what():
                return found
        except FileNotFoundError:
            pass
        time.sleep(0.05)
    sys.exit(f"still waiting after {seconds} s")


def says(wanted, terminal, log):
    """Whether a program printed the text; if it ended without it, the trial fails."""
    code, said = terminal.poll(), open(log.name).read()
    if wanted not in said and code is not None:
        sys.exit(f"ended with {code} before it printed \"{wanted}\":\n{said}")
    return wanted in said


def carry(hosts, counts):
    """Carries packets from host to host, with delay and loss."""
    by_address = {bytes(map(int, host.address.split("."))): host for host in hosts}
    drawn, under_way, number = random.Random(1), [], 0
    while True:
        wait = max(0, under_way[0][0] - time.monotonic()) if under_way else 1
        for tun in select.select([host.tun for host in hosts], [], [], wait)[0]:
            packet, now = os.read(tun, 2048), time.monotonic()
            sender, receiver = by_address.get(packet[12:16]), by_address.get(packet[16:20])
            if packet[0] >> 4 != 4 or not sender or not receiver:
                continue
            counts["sent"] += 1
            if drawn.random() < options.loss or sender.is_cut or receiver.is_cut:
                counts["lost"] += 1
                continue
            number += 1
            heapq.heappush(under_way, (now + options.delay, number, receiver.tun, packet))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, tun, packet = heapq.heappop(under_way)
            try:
                os.write(tun, packet)
            except OSError:
                counts["lost"] += 1  # the host is full, or gone


def blocks(guide):
    """The blocks of the guide: host, whether in its own terminal, whether after the run, and the commands."""
    for text in re.findall(r"```sh\n(# on .*?)```", guide, re.S):
        first, rest = text.split("\n", 1)
        where, *how = first.removeprefix("# on ").split(", ")
        yield where, how, rest


def main():
    guide = open(options.guide).read().replace("\nrounds = 100\n", f"\nrounds = {options.rounds}\n")
    folder = tempfile.mkdtemp(prefix="ebbflow-hosts-")
    tools = os.path.join(folder, "bin")
    os.mkdir(tools)
    shutil.copy(options.program, os.path.join(tools, "ebbflow"))
    with open(os.path.join(tools, "scp"), "w") as scp:
        scp.write(f'#!/bin/sh\nfor last; do :; done\nwhile [ $# -gt 1 ]; do cp "$1" "{folder}/${{last%%:*}}/"; shift; done\n')
    os.chmod(os.path.join(tools, "scp"), 0o755)
    os.environ["PATH"] = f"{tools}:{os.environ['PATH']}"

    hosts = {name: Host(name, folder) for name in ADDRESSES}
    counts = {"sent": 0, "lost": 0}
    threading.Thread(target=carry, args=(list(hosts.values()), counts), daemon=True).start()
    began, terminals, was_cut = time.monotonic(), [], False
    say = lambda text: print(f"{time.monotonic() - began:7.1f} s  {text}", flush=True)
    server, record = None, os.path.join(hosts["the server"].folder, "fleet/rounds.jsonl")
    rounds = lambda: open(record).read().count("\n")
    try:
        for where, how, commands in blocks(guide):
            host = hosts[where]
            if "in a terminal of its own" in how:
                log = open(os.path.join(host.folder, f"terminal-{len(terminals)}.log"), "w+")
                say(f"{where}: {commands.strip()}   # in a terminal of its own")
                terminal = host.start(commands, log)
                terminals.append((where, commands, terminal, log))
                is_server = " serve " in commands
                server = terminal if is_server else server
                wanted = "serving at" if is_server else "connected"
                wait_for(lambda: says(wanted, terminal, log))
                continue
            if "curl" in commands:
                wait_for(lambda: rounds() >= 3)
                say(f"{rounds()} rounds are done")
            if "pkill" in commands and not was_cut:
                was_cut, hosts["10.77.0.3"].is_cut, before = True, True, rounds()
                say(f"10.77.0.3 is cut off for {options.cut:g} s, after round {before}")
                time.sleep(options.cut)
                hosts["10.77.0.3"].is_cut = False
                say(f"10.77.0.3 is back, after round {rounds()}")
                if rounds() == before:
                    sys.exit("no round was completed meanwhile")
            if "when the run is over" in how:
                say("waiting for the end")
                if server.wait(timeout=3600) != 0:
                    sys.exit("the server failed")
            if "pkill" in commands:
                say(f"after round {rounds()}:")
            for line in commands.strip().split("\n")[:4]:
                say(f"{where}: {line}")
            said = host.run(commands)
            for line in said.strip().split("\n")[:12]:
                print(f"             {line}")
        codes = []
        for where, commands, terminal, log in terminals:
            if " join " in commands:
                codes.append(terminal.wait(timeout=60))
                last = open(log.name).read().strip().splitlines()[-1]
                say(f"{where}: {commands.split('--home')[1].strip()} ended with {codes[-1]}: {last}")
        # The guide revokes only the client that enrolled last.
        if codes != [0] * (len(codes) - 1) + [2] or "revoked" not in last:
            sys.exit(f"clients ended with {codes}; all but the last should have received the end of the run, and the last its revocation")
        numbers = [int(found) for found in re.findall(r'"round":(\d+)', open(record).read())]
        if numbers != list(range(options.rounds)):
            sys.exit(f"rounds are missing or repeated: {numbers}")
        say(f"done: {options.rounds} rounds, each once; {counts['lost']} of {counts['sent']} packets were lost")
        shutil.rmtree(folder)
    except BaseException:
        print(f"logs are in {folder}", file=sys.stderr)
        raise
    finally:
        for host in hosts.values():
            host.keeper.kill()


main()
