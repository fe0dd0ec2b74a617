"""What worker.py trains here: a small ResNet on MNIST, shared out among ten clients, two of a kind: clients 2k and 2k + 1 hold digits 2k and 2k + 1.

python3 resnet.py FILE writes the model to start from. EBBFLOW_DATA names the folder that holds mnist/.
"""
import functools, gzip, os, sys, torch
from torch import nn

torch.set_num_threads(1)
PER_CLIENT, HELD = 300, 30

class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.short = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else nn.Identity()

    def forward(self, x):
        return torch.relu(self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x))))) + self.short(x))

def model():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        Block(8, 8, 1), Block(8, 16, 2), Block(16, 32, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )

def idx(name, header):
    with gzip.open(os.path.join(os.environ["EBBFLOW_DATA"], "mnist", name)) as file:
        return torch.frombuffer(bytearray(file.read()[header:]), dtype=torch.uint8)

@functools.cache
def images(part):
    x = idx(f"{part}-images-idx3-ubyte.gz", 16).view(-1, 1, 28, 28).float() / 255
    return (x - 0.1307) / 0.3081, idx(f"{part}-labels-idx1-ubyte.gz", 8).long()

@functools.cache
def data(client, which):
    """The images and labels that a client has to "train" on or to be judged on ("held"), or all have to be judged on ("test")."""
    if which == "test":
        return tuple(part[:2000] for part in images("t10k"))
    x, y = images("train")
    digits = [(y == digit).nonzero().flatten() for digit in (client // 2 * 2, client // 2 * 2 + 1)]
    each = (PER_CLIENT + HELD) // 2
    mine = torch.stack([of[client % 2 * each :][:each] for of in digits], 1).flatten()
    mine = mine[:PER_CLIENT] if which == "train" else mine[PER_CLIENT:]
    return x[mine], y[mine]

if __name__ == "__main__":
    from safetensors.torch import save_file
    save_file({name: tensor for name, tensor in model().state_dict().items() if tensor.is_floating_point()}, sys.argv[1])
