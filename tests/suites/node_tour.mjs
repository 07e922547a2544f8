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
  lock: async () => {
    const { ID } = await consul.session.create({ name, ttl: "15s", behavior: "release", lockdelay: "0s" });
    const taken = await consul.kv.set({ key: "tour/lock", value: "me", acquire: ID });
    const renewed = await consul.session.renew(ID);
    const freed = await consul.kv.set({ key: "tour/lock", value: "me", release: ID });
    const listed = (await consul.session.list()).length;
    return [taken, renewed[0].Name, freed, listed, await consul.session.destroy(ID)];
  },
  txn: async () => {
    const ops = [{ KV: { Verb: "set", Key: "tour/txn", Value: Buffer.from("v").toString("base64") } }];
    return (await consul.transaction.create(ops)).Results.length;
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
  passing: async () => (await consul.health.service({ service: name, passing: true })).length,
  catalog: async () => (await consul.catalog.service.nodes(name)).map((s) => [s.ServiceID, s.ServicePort]),
  services: async () => Object.keys(await consul.catalog.service.list()).sort(),
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
    return [found.Nodes.map((n) => n.Service.ID), explained.Query.Name];
  },
  members: async () => (await consul.agent.members()).map((m) => m.Status),
  event: async () => {
    await consul.event.fire("tour-event", "payload");
    let events = [];
    while (!events.length) events = await consul.event.list("tour-event");
    return events.map((e) => [e.Name, String(e.Payload)]);
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
