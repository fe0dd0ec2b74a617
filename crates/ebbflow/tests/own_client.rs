//! The example client, with a model of its own, at a real server.

#[path = "../examples/own_client/line.rs"]
mod line;
mod served;

use ebbflow::exec::{read_vector, write_vector};
use ebbflow::net::client::JoinOutcome;
use served::{serve, token};

#[test]
fn a_line_is_trained_by_clients_that_bring_it() {
    let folder = tempfile::tempdir().unwrap();
    let start = folder.path().join("line.safetensors");
    write_vector(&start, &line::layout(), &[0.0, 0.0]).unwrap();
    let file = folder.path().join("run.toml");
    let shipped = include_str!("../examples/own_client/run.toml");
    let settings = shipped.replace("\"line.safetensors\"", &format!("{start:?}"));
    std::fs::write(&file, settings + "listen = \"127.0.0.1:0\"\n").unwrap();
    let out = folder.path().join("fleet");
    let (_server, url, server_log) = serve(&file, &out);
    let token = token(&out, &["--uses", "3"]);
    let clients: Vec<_> = (0..3)
        .map(|idx| {
            let (url, token, state_dir) =
                (url.clone(), token.clone(), folder.path().join(format!("client-{idx}")));
            std::thread::spawn(move || line::join_and_stay(&url, &state_dir, &token))
        })
        .collect();
    for client in clients {
        let left = client.join().unwrap();
        assert!(matches!(left, Ok(JoinOutcome::RunOver(_))), "{left:?}");
    }
    server_log.join().unwrap();
    let rows = std::fs::read_to_string(out.join("rounds.jsonl")).unwrap();
    assert_eq!(rows.lines().count(), 10);
    let model = read_vector(&out.join("model.safetensors"), &line::layout()).unwrap();
    assert!((model[0] - 2.0).abs() < 0.02 && (model[1] + 1.0).abs() < 0.02, "{model:?}");
    let last: serde_json::Value = serde_json::from_str(rows.lines().last().unwrap()).unwrap();
    assert!(last["loss"].as_f64().unwrap() < 1e-3, "evaluated by the clients: {last}");
}
