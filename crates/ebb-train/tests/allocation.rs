//! A training step allocates nothing, whatever the network.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use ebb_round::{Adam, StepRule, Stream};
use ebb_train::KernelPath;
use ebb_train::net::{Input, Layer, NAMES, Net, Spec, Workspace, named};

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: everything is left to the system's allocator.
#[allow(unsafe_code, reason = "an allocator is unsafe by its trait")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn step(net: &Net, workspace: &mut Workspace, n_rows: usize) {
    let (to, labels) = workspace.batch();
    to[..n_rows * net.input_len()].fill(1.0);
    labels.extend((0..n_rows as u32).map(|row| row % 10));
    workspace.step(net, &mut Stream::of_run(1, "dropout"));
}

fn check(name: &str, spec: &Spec, rule: &StepRule<'_>) {
    let net = Net::new(spec, KernelPath::available()[0]).unwrap();
    let start = net.initial(1);
    let mut workspace = Workspace::new(&net, 5);
    workspace.load(&net, &start);
    workspace.set_step_rule(&net, rule, &start);
    // The first step allocates the lists of active outputs.
    step(&net, &mut workspace, 5);
    let before = COUNT.with(Cell::get);
    for n_rows in [5, 2, 5] {
        step(&net, &mut workspace, n_rows);
    }
    assert_eq!(COUNT.with(Cell::get) - before, 0, "{name}");
}

#[test]
fn the_allocator_counts() {
    let before = COUNT.with(Cell::get);
    drop(std::hint::black_box(vec![1]));
    assert_eq!(COUNT.with(Cell::get) - before, 1);
}

#[test]
fn a_step_allocates_nothing() {
    let adam = StepRule {
        learning_rate: 0.001,
        weight_decay: 0.1,
        max_grad_norm: Some(1.0),
        adam: Some(Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }),
        ..StepRule::default()
    };
    let momentum = StepRule { learning_rate: 0.01, momentum: 0.9, ..StepRule::default() };
    for (name, _) in NAMES {
        let input = match *name {
            "char-lstm" => Input::Sequence { steps: 4, symbols: 80 },
            _ => Input::Image { height: 28, width: 28, channels: 1 },
        };
        let spec = named(name, input, 10).unwrap();
        check(name, &spec, &momentum);
        check(name, &spec, &adam);
        check(name, &spec, &StepRule { proximal: 0.1, nesterov: true, ..momentum });
    }
    let conv = Layer::Conv { channels: 4, kernel: 3, stride: 1, padding: 1 };
    let dense = Layer::Dense { units: 10 };
    for layer in [Layer::AvgPool { size: 2 }, Layer::MaxPool { size: 5 }, Layer::Tanh, Layer::BatchNorm] {
        let input = Input::Image { height: 10, width: 10, channels: 2 };
        let layers = vec![conv, Layer::Tanh, layer, Layer::Relu, dense, Layer::SquaredError];
        check(layer.name(), &Spec { input, layers }, &momentum);
    }
}
