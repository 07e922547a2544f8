// A tour of what applications do with the crate "rs-consul": each step's result is printed as JSON.

use rs_consul::*;
use serde_json::{json, Value};
use std::collections::HashMap;
use std::time::{Duration, Instant};

const SERVICE: &str = "rust-web";
const DEADLINE: Duration = Duration::from_secs(20);

fn show(step: &str, result: Value) {
    println!("{}", json!([step, result]));
}

fn failed(error: ConsulError) -> Value {
    match error {
        ConsulError::UnexpectedResponseCode(code, body) => json!([code.as_u16(), body]),
        ConsulError::LockAcquisitionFailure(_) => json!("held by another"),
        other => json!(format!("{other:?}")),
    }
}

fn read(key: &str) -> ReadKeyRequest<'_> {
    ReadKeyRequest {
        key,
        ..Default::default()
    }
}

fn write(key: &str) -> CreateOrUpdateKeyRequest<'_> {
    CreateOrUpdateKeyRequest {
        key,
        ..Default::default()
    }
}

async fn put(consul: &Consul, request: CreateOrUpdateKeyRequest<'_>, value: &str) -> Value {
    match consul.create_or_update_key(request, value.into()).await {
        Ok((done, _)) => json!(done),
        Err(error) => failed(error),
    }
}

async fn keys(consul: &Consul) {
    show("put", put(consul, write("rust/key"), "value").await);
    let found = consul.read_key(read("rust/key")).await.unwrap();
    let key = &found.response[0];
    show(
        "get",
        json!([key.key, key.value, key.flags, key.lock_index, key.session, found.index > 0]),
    );
    let checked = |index| CreateOrUpdateKeyRequest {
        check_and_set: Some(index),
        flags: 7,
        ..write("rust/key")
    };
    show("check and set", put(consul, checked(0), "other").await);
    show("check and set again", put(consul, checked(key.modify_index), "other").await);
    let bad = CreateOrUpdateKeyRequest {
        acquire: "none",
        release: "none",
        ..write("rust/key")
    };
    show("acquire and release", put(consul, bad, "").await);
    let unknown = CreateOrUpdateKeyRequest {
        acquire: "11111111-2222-3333-4444-555555555555",
        ..write("rust/key")
    };
    show("unknown session", put(consul, unknown, "").await);
    put(consul, write("rust/a"), "1").await;
    let all = ReadKeyRequest {
        recurse: true,
        consistency: ConsistencyMode::Stale,
        ..read("rust/")
    };
    let listed = consul.read_key(all).await.unwrap().response;
    show(
        "get all",
        listed.iter().map(|each| json!([each.key, each.value, each.flags])).collect(),
    );
    let request = DeleteKeyRequest {
        key: "rust/",
        recurse: true,
        ..Default::default()
    };
    show("delete all", json!(consul.delete_key(request).await.unwrap()));
    show("missing", failed(consul.read_key(read("rust/key")).await.unwrap_err()));
}

async fn locks(consul: &Consul) {
    let request = LockRequest {
        key: "rust/lock",
        lock_delay: Duration::ZERO,
        ..Default::default()
    };
    let lock = consul.get_lock(request, b"me").await.unwrap();
    let Err(held) = consul.get_lock(request, b"other").await else {
        panic!("a held lock was given away");
    };
    let index = match held {
        ConsulError::LockAcquisitionFailure(index) => index,
        other => panic!("{other:?}"),
    };
    show("held", failed(held));
    let watch = LockWatchRequest {
        key: "rust/lock",
        consistency: ConsistencyMode::Consistent,
        index: Some(index),
        wait: Duration::from_secs(60),
        ..Default::default()
    };
    let (watched, _) = tokio::join!(consul.watch_lock(watch), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        tokio::task::block_in_place(|| drop(lock));
    });
    let seen = &watched.unwrap().response[0];
    show("released", json!([seen.key, seen.session.is_none()]));
    let again = until(|| consul.get_lock(request, b"again")).await;
    show("taken again", json!(!again.session_id.is_empty()));
    let short = LockRequest {
        timeout: Duration::from_secs(9),
        key: "rust/short",
        ..Default::default()
    };
    show(
        "short session",
        match consul.get_lock(short, b"").await {
            Ok(_) => json!("taken"),
            Err(error) => failed(error),
        },
    );
}

async fn until<T, E: std::fmt::Debug, F: std::future::Future<Output = std::result::Result<T, E>>>(
    mut run: impl FnMut() -> F,
) -> T {
    let start = Instant::now();
    loop {
        match run().await {
            Ok(found) => return found,
            Err(error) => assert!(start.elapsed() < DEADLINE, "{error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn check(id: &str, status: &str) -> RegisterEntityCheck {
    RegisterEntityCheck {
        Node: None,
        CheckID: Some(id.into()),
        Name: id.into(),
        Notes: Some("notes".into()),
        Status: Some(status.into()),
        ServiceID: Some("rust-web1".into()),
        Definition: HashMap::from([("TCP".into(), "127.0.0.1:1".into())]),
    }
}

async fn services(consul: &Consul) {
    let register = RegisterEntityPayload {
        ID: None,
        Node: "rust-node".into(),
        Address: "127.0.0.1".into(),
        Datacenter: Some("dc1".into()),
        TaggedAddresses: HashMap::from([("lan".into(), "127.0.0.1".into())]),
        NodeMeta: HashMap::from([("rack".into(), "1".into())]),
        Service: Some(RegisterEntityService {
            ID: Some("rust-web1".into()),
            Service: SERVICE.into(),
            Tags: vec!["a".into()],
            TaggedAddresses: HashMap::new(),
            Meta: HashMap::from([("k".into(), "v".into())]),
            Port: Some(81),
            Namespace: None,
        }),
        Checks: vec![check("good", "passing"), check("bad", "critical")],
        SkipNodeUpdate: None,
    };
    show("register", json!(consul.register_entity(&register).await.is_ok()));
    let mut names = consul.get_all_registered_service_names(None).await.unwrap().response;
    names.sort();
    show("services", json!(names));
    for (step, passing, filter) in [
        ("instances", false, None),
        ("healthy instances", true, None),
        ("filtered instances", false, Some("Service.Port==82")),
    ] {
        let request = GetServiceNodesRequest {
            service: SERVICE,
            near: None,
            passing,
            filter,
        };
        let found = consul.get_service_nodes(request, None).await;
        let shown = |each: &ServiceNode| {
            let (node, service) = (&each.node, &each.service);
            json!([node.node, node.datacenter, service.id, service.port, service.tags])
        };
        show(step, found.map_or_else(failed, |it| it.response.iter().map(shown).collect()));
    }
    let places = consul.get_service_addresses_and_ports("consul", None).await.unwrap();
    show("addresses", json!(places.len()));
    for (step, filter) in [("nodes", None), ("filtered nodes", Some("Meta.rack==1"))] {
        let request = GetNodesRequest { near: None, filter };
        let nodes = consul.get_nodes(request, None).await.unwrap().response;
        show(step, nodes.iter().map(|each| json!([each.node, each.address])).collect());
    }
    let deregister = DeregisterEntityPayload {
        Node: Some("rust-node".into()),
        Datacenter: None,
        CheckID: None,
        ServiceID: None,
        Namespace: None,
    };
    show("deregister", json!(consul.deregister_entity(&deregister).await.is_ok()));
}

async fn tokens(consul: &Consul, guarded: &Consul) {
    let names = |found: Vec<ACLPolicy>| json!(found.iter().map(|each| &each.name).collect::<Vec<_>>());
    show("no ACLs", consul.get_acl_policies().await.map_or_else(failed, names));
    let policy = CreateACLPolicyRequest {
        name: "rust-policy".into(),
        description: Some("d".into()),
        rules: Some("key_prefix \"rust/\" { policy = \"write\" }".into()),
    };
    let made = guarded.create_acl_policy(&policy).await.unwrap();
    show("policy", json!([made.name, made.description, made.hash, made.datacenters]));
    let again = guarded.create_acl_policy(&policy).await;
    show("policy again", again.map_or_else(failed, |it| json!(it.name)));
    show("policies", guarded.get_acl_policies().await.map_or_else(failed, names));
    let token = CreateACLTokenPayload {
        description: Some("t".into()),
        policies: vec![ACLTokenPolicyLink {
            name: Some("rust-policy".into()),
            ..Default::default()
        }],
        ..Default::default()
    };
    let made_token = guarded.create_acl_token(&token).await.unwrap();
    let read = guarded.read_acl_token(made_token.accessor_id.clone()).await.unwrap();
    let linked: Vec<_> = read.policies.iter().map(|each| &each.name).collect();
    show("token", json!([read.description, linked, read.secret_id == made_token.secret_id, read.local]));
    // It reads secrets from the list, which later versions show.
    show("tokens", json!(guarded.get_acl_tokens().await.is_ok()));
    let accessor = made_token.accessor_id.clone();
    show("delete token", json!(guarded.delete_acl_token(accessor).await.is_ok()));
    let gone = guarded.read_acl_token(made_token.accessor_id).await;
    show("deleted token", gone.map_or_else(failed, |it| json!(it.description)));
    show("delete policy", json!(guarded.delete_acl_policy(made.id).await.is_ok()));
}

#[tokio::main]
async fn main() {
    let guarded = Consul::new(Config {
        address: std::env::args().nth(2).expect("the address of one with ACLs"),
        token: std::env::args().nth(3),
        ..Default::default()
    });
    let consul = Consul::new(Config {
        address: std::env::args().nth(1).expect("an address"),
        ..Default::default()
    });
    keys(&consul).await;
    locks(&consul).await;
    services(&consul).await;
    tokens(&consul, &guarded).await;
}
