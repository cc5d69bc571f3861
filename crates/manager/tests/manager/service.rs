//! The manager as a server: real store, real sockets, stopped and started again.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use stdchk_manager::{AUTHORITY, Config, Manager, ManagerError};
use stdchk_model::message::benefactor::BenefactorLoad;
use stdchk_model::message::handshake::Role;
use stdchk_model::message::manager::{
    BenefactorSecret, Change, FileKind, ManagerReply, ManagerRequest, Registration,
};
use stdchk_model::{ErrorCode, Incarnation, Ino, OpId, PoolId, ReceiptKey, Tier};
use stdchk_net::transport::unix_address;
use stdchk_net::{Authority, BufferPool, Bytes, CallError, Connection, Identity};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const LIMIT: Duration = Duration::from_secs(60);

struct Running {
    pool: PoolId,
    connection: Connection,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<Result<(), ManagerError>>,
}

fn config(data: &Path) -> Config {
    Config::new(data, unix_address(&data.join("socket")))
}

async fn start(data: &Path) -> Running {
    let manager = Manager::open(config(data)).await.unwrap();
    let (pool, address) = (manager.pool(), manager.addresses()[0].clone());
    let (stop, stopped) = oneshot::channel();
    let serving = tokio::spawn(manager.serve(async move { stopped.await.unwrap() }));
    let identity = Identity { role: Role::Client, pool: Some(pool), keys: None };
    let connection =
        Connection::open(Role::Manager, &address, &identity, &BufferPool::new(1 << 20)).await.unwrap();
    Running { pool, connection, stop, serving }
}

impl Running {
    async fn ask(&self, request: ManagerRequest) -> Result<ManagerReply, CallError> {
        self.connection.call(&request, Bytes::new(), LIMIT).await.map(|(reply, _)| reply)
    }

    async fn make(&self, number: u8) -> Result<ManagerReply, CallError> {
        let change = Change::Make {
            parent: Ino::ROOT,
            name: format!("folder {number}"),
            kind: FileKind::Directory,
            mode: 0o755,
            uid: 0,
            gid: 0,
            target: String::new(),
        };
        self.ask(ManagerRequest::Change { id: OpId([number; 16]), change }).await
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.serving.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_manager_started_again_is_the_same_pool_with_all_that_was_answered() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("manager");
    let first = start(&data).await;
    let pool = first.pool;
    for number in 0..20 {
        first.make(number).await.unwrap();
    }
    first.stop().await;
    let second = start(&data).await;
    assert_eq!(second.pool, pool);
    let request = ManagerRequest::ReadDir { ino: Ino::ROOT, after: None, limit: 100 };
    let ManagerReply::Entries(entries) = second.ask(request).await.unwrap() else { panic!() };
    assert_eq!(entries.len(), 20);
    second.stop().await;
}

#[tokio::test]
async fn concurrent_changes_are_each_answered_once() {
    let directory = tempfile::tempdir().unwrap();
    let running = start(&directory.path().join("manager")).await;
    let answers = (0..100u8).map(|number| running.make(number % 50));
    let mut inodes = std::collections::BTreeSet::new();
    for answer in join_all(answers).await {
        let ManagerReply::Entry(attr) = answer.unwrap() else { panic!() };
        inodes.insert(attr.ino);
    }
    assert_eq!(inodes.len(), 50);
    running.stop().await;
}

/// Polls all futures at once.
async fn join_all<T>(futures: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut waiting: Vec<_> = futures.map(Box::pin).collect();
    let mut done: Vec<Option<T>> = waiting.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, slot) in waiting.iter_mut().zip(&mut done) {
            if slot.is_none()
                && let std::task::Poll::Ready(value) = future.as_mut().poll(context)
            {
                *slot = Some(value);
            }
        }
        if done.iter().all(Option::is_some) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}

#[tokio::test]
async fn a_second_manager_on_the_same_data_and_foreign_directories_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("manager");
    let running = start(&data).await;
    let error = Manager::open(config(&data)).await.err().unwrap().to_string();
    assert!(error.contains(&std::process::id().to_string()), "{error}");
    running.stop().await;
    let foreign = directory.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("thesis.tex"), "years of work").unwrap();
    let error = Manager::open(config(&foreign)).await.err().unwrap().to_string();
    assert!(error.contains("thesis.tex"), "{error}");
}

/// A registration of a new benefactor with this secret.
fn registration(secret: u8) -> ManagerRequest {
    let load = BenefactorLoad { donated_bytes: 1 << 30, free_bytes: 1 << 30, ..BenefactorLoad::default() };
    let (incarnation, address) = (Incarnation(u64::from(secret)), format!("127.0.0.1:{secret}"));
    let (id, pid, remembered, put_sequence, receipt_key, term) =
        (None, 1, None, 0, ReceiptKey([secret; 32]), None);
    let (machine, labels) = (None, Vec::new());
    let new = Registration {
        id,
        incarnation,
        address,
        pid,
        load,
        remembered,
        put_sequence,
        receipt_key,
        term,
        machine,
        labels,
        tier: Tier::Disk,
    };
    new.introduced(&BenefactorSecret([secret; 32]))
}

#[tokio::test]
async fn on_a_network_everybody_may_do_what_their_certificate_says() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("manager");
    let mut config = config(&data);
    config.listen.push("127.0.0.1:0".to_owned());
    let manager = Manager::open(config).await.unwrap();
    let address = manager.addresses()[1].clone();
    let serving = tokio::spawn(manager.serve(std::future::pending()));
    let authority = Authority::open(&data.join(AUTHORITY)).unwrap();
    let connect = async |role: Role| {
        let keys = authority.keys(&[role]).unwrap().keys(&data).unwrap();
        let identity = Identity { role, pool: None, keys: Some(Arc::new(keys)) };
        Connection::open(Role::Manager, &address, &identity, &BufferPool::new(1 << 20)).await.unwrap()
    };
    let ask = async |connection: &Connection, request: &ManagerRequest| {
        let answer: Result<(ManagerReply, _), _> = connection.call(request, Bytes::new(), LIMIT).await;
        answer.map(|(reply, _)| reply)
    };
    let denied = |answer: Result<ManagerReply, CallError>| {
        let failure = answer.unwrap_err().failure();
        assert_eq!(failure.code, ErrorCode::Denied, "{failure}");
    };
    let (client, operator) = (connect(Role::Client).await, connect(Role::Operator).await);
    let (one, two) = (connect(Role::Benefactor).await, connect(Role::Benefactor).await);
    for connection in [&client, &operator] {
        ask(connection, &ManagerRequest::Space).await.unwrap();
        denied(ask(connection, &registration(9)).await);
    }
    denied(ask(&one, &ManagerRequest::Benefactors).await);
    denied(ask(&client, &ManagerRequest::AcceptOlderStore).await);
    ask(&operator, &ManagerRequest::AcceptOlderStore).await.unwrap();
    let ManagerReply::Registered { id, registration: number, .. } =
        ask(&one, &registration(1)).await.unwrap()
    else {
        panic!("no registration")
    };
    ask(&two, &registration(2)).await.unwrap();
    // Nobody speaks for another one, also not with its number.
    let begin = ManagerRequest::BeginInventory { id, registration: number };
    denied(ask(&two, &begin).await);
    denied(ask(&client, &begin).await);
    ask(&one, &begin).await.unwrap();
    serving.abort();
}

#[tokio::test]
async fn a_collection_just_after_the_start_says_when_to_come_back() {
    let directory = tempfile::tempdir().unwrap();
    let running = start(&directory.path().join("manager")).await;
    let refused = running.ask(ManagerRequest::Collect { dry_run: false }).await.unwrap_err().failure();
    assert_eq!(refused.code, ErrorCode::Unavailable);
    assert!(refused.next.as_ref().is_some_and(|next| next.contains("collect again in")), "{refused}");
    running.stop().await;
}
