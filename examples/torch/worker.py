"""A worker for Ebbflow that trains a PyTorch model: python3 worker.py MODULE, where MODULE has model() and data(client, which), as resnet.py has."""
import importlib, json, sys, torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy

task = importlib.import_module(sys.argv[1])
net = task.model()
state = {name: tensor for name, tensor in net.state_dict().items() if tensor.is_floating_point()}

def load(file):
    net.load_state_dict(load_file(file), strict=False)  # what only counts batches is not in the file

def describe(client):
    can = ["momentum", "nesterov", "weight-decay", "pull", "push", "clip", "loss"]  # neither adam nor gradient
    return {"samples": len(task.data(client, "train")[1]), "held_out": len(task.data(client, "held")[1]), "labels": True, "can": can}

def begin(client, round, seed, model, batch, steps):
    global start, batches, optimiser, seen
    load(model)
    (x, y), optimiser, seen = task.data(client, "train"), None, []
    start = {name: tensor.clone() for name, tensor in state.items()}
    draw = torch.Generator().manual_seed((seed * 1_000_003 + round) * 1_000_003 + client)
    batches = (part for _ in iter(int, 1) for part in torch.randperm(len(y), generator=draw).split(batch or len(y)))
    batches = ((x[part], y[part]) for part in batches)
    return {}

def steps(count, rule):
    global optimiser
    if optimiser is None:
        optimiser = torch.optim.SGD(net.parameters(), 1.0, rule["momentum"], 0, rule["weight_decay"], rule["nesterov"])
    optimiser.param_groups[0]["lr"] = rule["rate"]
    push = load_file(rule["push"]) if rule["push"] else {}
    net.train()
    for _, (x, y) in zip(range(count), batches):
        optimiser.zero_grad()
        out = net(x)
        loss = cross_entropy(out, y)
        loss.backward()
        for name, weight in net.named_parameters():
            weight.grad += rule["pull"] * (weight.detach() - start[name]) + push.get(name, 0)
        torch.nn.utils.clip_grad_norm_(net.parameters(), rule["clip"] or float("inf"))
        optimiser.step()
        seen.append((loss.item(), (out.argmax(1) == y).float().mean().item()))
    return {"steps": count}

def update(file):
    save_file({name: tensor - start[name] for name, tensor in state.items()}, file)
    losses, tenth = [loss for loss, _ in seen], max(1, len(seen) // 10)
    fall = sum(losses[:tenth]) / tenth - sum(losses[-tenth:]) / tenth
    return {"steps": len(seen), "loss": sum(losses) / len(seen), "loss_fall": fall, "accuracy": sum(hits for _, hits in seen) / len(seen)}

def scores(model, x, y):
    load(model)
    net.eval()
    with torch.no_grad():
        out = torch.cat([net(part) for part in x.split(500)])
    return {"samples": len(y), "loss": cross_entropy(out, y, reduction="sum").item(), "hits": (out.argmax(1) == y).sum().item()}

def loss(client, model, samples):
    sums = scores(model, *(part[:samples] for part in task.data(client, "train")))
    return {"loss": sums["loss"] / sums["samples"]}

def evaluate(client, model):
    return scores(model, *task.data(client, "test" if client is None else "held"))

for line in sys.stdin:
    request = json.loads(line)
    try:
        reply = {"describe": describe, "begin": begin, "steps": steps, "update": update, "loss": loss, "evaluate": evaluate}[request.pop("do")](**request)
    except Exception as error:
        reply = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(reply), flush=True)
