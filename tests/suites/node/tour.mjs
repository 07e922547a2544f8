// A tour of what applications do with the npm package "consul": each step's result is printed as JSON.
import { createRequire } from "node:module";
const Consul = createRequire(process.argv[2] + "/")("consul");
const [, , , host, port] = process.argv;
const consul = new Consul({ host, port: Number(port) });
const name = "tour";
const steps = {
  put: () => consul.kv.set("tour/key", "value"),
  get: async () => (await consul.kv.get("tour/key")).Value,
  missing: () => consul.kv.get("tour/none"),
  keys: () => consul.kv.keys("tour/"),
  cas: () => consul.kv.set({ key: "tour/key", value: "other", cas: "0" }),
  bad: () => consul.kv.set({ key: "tour/key", value: "v", cas: "none" }),
  nothing: async () => [await consul.kv.set("tour/null", null), (await consul.kv.get("tour/null")).Value],
  raw: async () => String(await consul.kv.get({ key: "tour/key", raw: true })),
  list: async () => (await consul.kv.get({ key: "tour/", recurse: true })).map((found) => Object.keys(found)),
  separated: async () => {
    for (const key of ["tour/a/1", "tour/a/2", "tour/b/1"]) await consul.kv.set(key, "v");
    return consul.kv.keys({ key: "tour/", separator: "/" });
  },
  waited: async () => {
    const { ModifyIndex: index } = await consul.kv.get("tour/key");
    const waiting = consul.kv.get({ key: "tour/key", index, wait: "30s" });
    await consul.kv.set("tour/key", "later");
    return (await waiting).Value;
  },
  lock: async () => {
    const { ID } = await consul.session.create({ name, ttl: "15s", behavior: "release", lockdelay: "0s" });
    const taken = await consul.kv.set({ key: "tour/lock", value: "me", acquire: ID });
    const renewed = await consul.session.renew(ID);
    const freed = await consul.kv.set({ key: "tour/lock", value: "me", release: ID });
    const listed = (await consul.session.list()).length;
    return [taken, renewed[0].Name, freed, listed, await consul.session.destroy(ID)];
  },
  session: async () => {
    const { ID } = await consul.session.create();
    const fields = Object.keys(await consul.session.get(ID));
    const [own, none] = [await consul.session.node("node1"), await consul.session.node("none")];
    await consul.session.destroy(ID);
    return [fields, own.map((found) => Object.keys(found)), none, await consul.session.get(ID)];
  },
  txn: async () => {
    const ops = [{ KV: { Verb: "set", Key: "tour/txn", Value: Buffer.from("v").toString("base64") } }];
    return (await consul.transaction.create(ops)).Results.map(({ KV }) => Object.keys(KV));
  },
  watch: () =>
    new Promise((resolve, reject) => {
      const seen = [];
      const watch = consul.watch({ method: consul.kv.get, options: { key: "tour/watched" } });
      watch.on("error", reject);
      watch.on("change", async (data) => {
        seen.push(data ? data.Value : null);
        if (seen.length === 1) await consul.kv.set("tour/watched", "new");
        else if (seen.at(-1) === "new") watch.end(), resolve(seen.at(-1));
      });
    }),
  service: async () => {
    const check = { ttl: "60s", status: "passing", notes: "n" };
    await consul.agent.service.register({ name, id: "tour1", port: 80, tags: ["a"], meta: { k: "v" }, check });
    await consul.agent.check.warn({ id: "service:tour1", note: "hot" });
    const own = (await consul.agent.service.list()).tour1;
    let healthy = [];
    while (!healthy.length) healthy = await consul.health.service({ service: name, tag: "a" });
    const [{ Service, Checks }] = healthy;
    return [own.Port, own.Tags, own.Meta, Service.ID, Checks.map((c) => [c.CheckID, c.Type]).sort()];
  },
  filtered: async () => (await consul.health.service({ service: name, filter: "Service.Port == 81" })).length,
  checks: async () => {
    const found = [];
    await consul.agent.check.register({ name: "tour-check", ttl: "60s", notes: "n" });
    for (const state of ["pass", "warn", "fail"]) {
      await consul.agent.check[state]("tour-check");
      found.push((await consul.agent.checks())["tour-check"].Status);
    }
    await consul.agent.check.deregister("tour-check");
    return [found, Object.keys(await consul.agent.check.list())];
  },
  definitions: async () => {
    const checks = [
      { http: "http://127.0.0.1:1/", interval: "30s", notes: "http", header: { A: ["b"] }, tlsskipverify: true },
      { tcp: "127.0.0.1:1", interval: "30s", timeout: "1s", deregistercriticalserviceafter: "90m" },
      { args: ["true"], interval: "30s" },
    ];
    for (const [number, check] of checks.entries()) {
      await consul.agent.service.register({ name: `tour-defined${number}`, check });
    }
    const found = Object.values(await consul.agent.checks()).filter((each) => each.Name.includes("tour-defined"));
    for (const number of checks.keys()) await consul.agent.service.deregister(`tour-defined${number}`);
    return found.map((each) => [each.CheckID, each.Notes, each.Type, each.ServiceName]).sort();
  },
  health: async () => {
    const [node, checks] = [await consul.health.node("node1"), await consul.health.checks(name)];
    const [any, critical] = [await consul.health.state("any"), await consul.health.state("critical")];
    return [node, checks, any, critical].map((found) => found.map((each) => each.CheckID).sort());
  },
  passing: async () => (await consul.health.service({ service: name, passing: true })).length,
  catalog: async () => (await consul.catalog.service.nodes(name)).map((s) => [s.ServiceID, s.ServicePort]),
  services: async () => Object.keys(await consul.catalog.service.list()).sort(),
  nodes: async () => (await consul.catalog.node.list("dc1")).map((found) => [found.Node, found.Address]),
  datacenters: () => consul.catalog.datacenters(),
  node: async () => {
    const { Node, Services } = await consul.catalog.node.services("node1");
    return [Node.Node, Object.keys(Services).sort(), Object.keys(Services.tour1).sort()];
  },
  nodeMaintenance: async () => {
    await consul.agent.maintenance(true);
    const { Status, Name } = (await consul.agent.checks())._node_maintenance;
    await consul.agent.maintenance({ enable: false });
    return [Status, Name, Object.keys(await consul.agent.checks())];
  },
  self: async () => {
    const { Config, Member } = await consul.agent.self();
    return [Object.keys(Config), Config.Server, Config.NodeName, Member.Name, Member.Addr];
  },
  leader: async () => (await consul.status.leader()) === (await consul.status.peers())[0],
  maintenance: async () => {
    await consul.agent.service.maintenance({ id: "tour1", enable: true, reason: "r" });
    const on = Object.values(await consul.agent.check.list()).map((c) => c.Type).sort();
    await consul.agent.service.maintenance({ id: "tour1", enable: false });
    return on;
  },
  query: async () => {
    const { ID } = await consul.query.create({ name: "tour-query", service: { service: name } });
    const found = await consul.query.execute({ query: ID });
    const explained = await consul.query.explain({ query: ID });
    await consul.query.destroy(ID);
    return [found.Nodes.map((n) => n.Service.ID), Object.keys(explained ?? {})];
  },
  members: async () => (await consul.agent.members()).map((m) => m.Status),
  event: async () => {
    const fired = await consul.event.fire("tour-event", "payload");
    let events = [];
    while (!events.length) events = await consul.event.list("tour-event");
    return [Object.keys(fired), events.map((found) => [found.Name, String(found.Payload), found.ID === fired.ID])];
  },
  badCheck: () => consul.agent.check.register({ name: "bad", ttl: "9s", interval: "9s" }),
  gone: async () => {
    await consul.agent.service.deregister("tour1");
    await consul.kv.del({ key: "tour/", recurse: true });
    return Object.keys(await consul.agent.service.list());
  },
};
for (const [step, run] of Object.entries(steps)) {
  let result;
  try {
    result = (await run()) ?? null;
  } catch (error) {
    result = [error.statusCode, error.message];
  }
  console.log(JSON.stringify([step, result]));
}
