// A tour of what applications do with the Java package "consul-client": each step's result is printed as JSON.

import com.fasterxml.jackson.databind.ObjectMapper;
import com.google.common.collect.ImmutableMap;
import com.google.common.net.HostAndPort;
import com.orbitz.consul.AclClient;
import com.orbitz.consul.AgentClient;
import com.orbitz.consul.Consul;
import com.orbitz.consul.ConsulException;
import com.orbitz.consul.KeyValueClient;
import com.orbitz.consul.NotRegisteredException;
import com.orbitz.consul.SessionClient;
import com.orbitz.consul.async.Callback;
import com.orbitz.consul.cache.ConsulCache;
import com.orbitz.consul.cache.HealthCheckCache;
import com.orbitz.consul.cache.KVCache;
import com.orbitz.consul.cache.ServiceCatalogCache;
import com.orbitz.consul.cache.ServiceHealthCache;
import com.orbitz.consul.config.CacheConfig;
import com.orbitz.consul.config.ClientConfig;
import com.orbitz.consul.model.State;
import com.orbitz.consul.model.acl.ImmutablePolicy;
import com.orbitz.consul.model.acl.ImmutablePolicyLink;
import com.orbitz.consul.model.acl.ImmutableToken;
import com.orbitz.consul.model.acl.TokenResponse;
import com.orbitz.consul.model.agent.ImmutableCheck;
import com.orbitz.consul.model.agent.ImmutableRegCheck;
import com.orbitz.consul.model.agent.ImmutableRegistration;
import com.orbitz.consul.model.agent.Registration.RegCheck;
import com.orbitz.consul.model.catalog.ImmutableCatalogDeregistration;
import com.orbitz.consul.model.catalog.ImmutableCatalogRegistration;
import com.orbitz.consul.model.catalog.ImmutableServiceWeights;
import com.orbitz.consul.model.health.ImmutableService;
import com.orbitz.consul.model.kv.ImmutableOperation;
import com.orbitz.consul.model.query.ImmutablePreparedQuery;
import com.orbitz.consul.model.query.ImmutableServiceQuery;
import com.orbitz.consul.model.session.ImmutableSession;
import com.orbitz.consul.option.ConsistencyMode;
import com.orbitz.consul.option.ImmutableDeleteOptions;
import com.orbitz.consul.option.ImmutableQueryOptions;
import com.orbitz.consul.option.PutOptions;
import com.orbitz.consul.option.QueryOptions;
import com.orbitz.consul.util.LeaderElectionUtil;
import com.orbitz.consul.util.Jackson;
import java.io.File;
import java.math.BigInteger;
import java.net.URL;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;

public final class Tour {
  private static final ObjectMapper JSON = Jackson.MAPPER;
  private static final List<String> TAGS = Collections.singletonList("a");
  private static final Map<String, String> META = Collections.singletonMap("k", "v");
  private static final long DEADLINE = 20;

  private static Consul consul;
  private static AgentClient agent;
  private static KeyValueClient keys;
  private static SessionClient sessions;

  public static void main(String[] args) throws Exception {
    ClientConfig config =
        new ClientConfig(CacheConfig.builder().withWatchDuration(Duration.ofSeconds(1)).build());
    consul =
        Consul.builder()
            .withHostAndPort(HostAndPort.fromParts(args[0], Integer.parseInt(args[1])))
            .withClientConfiguration(config)
            .withReadTimeoutMillis(20_000)
            .build();
    agent = consul.agentClient();
    keys = consul.keyValueClient();
    sessions = consul.sessionClient();
    keys();
    locks();
    watches();
    services();
    checks();
    catalog();
    others();
    tokens(HostAndPort.fromParts(args[0], Integer.parseInt(args[2])), args[3]);
    snapshot();
    consul.destroy();
    System.exit(0);
  }

  private static void step(String name, Callable<Object> run) throws Exception {
    Object result;
    try {
      result = run.call();
    } catch (ConsulException | NotRegisteredException error) {
      result = Arrays.asList(error.getClass().getSimpleName(), error.getMessage());
    }
    System.out.println(JSON.writeValueAsString(Arrays.asList(name, result)));
  }

  private static void keys() throws Exception {
    step("put", () -> keys.putValue("java/key", "value", 7));
    step("get", () -> {
      com.orbitz.consul.model.kv.Value found = keys.getValue("java/key").get();
      return Arrays.asList(found.getKey(), found.getValueAsString(), found.getFlags(), found.getLockIndex());
    });
    step("put nothing", () -> Arrays.asList(keys.putValue("java/none"), keys.getValue("java/none").get().getValue()));
    step("put bytes", () -> {
      byte[] sent = new byte[256];
      for (int i = 0; i < sent.length; i++) {
        sent[i] = (byte) i;
      }
      keys.putValue("java/bytes", sent, 0, PutOptions.BLANK);
      return Arrays.equals(sent, keys.getValue("java/bytes").get().getValueAsBytes().get());
    });
    step("negative flags", () -> {
      keys.putValue("java/flags", "v", Long.MIN_VALUE + 3);
      return keys.getValue("java/flags").get().getFlags();
    });
    step("get all", () -> new TreeSet<>(keys.getValuesAsString("java/k")));
    step("keys", () -> keys.getKeys("java"));
    step("keys to a separator", () -> keys.getKeys("java", "/"));
    step("missing", () -> Arrays.asList(
        keys.getValue("java/missing"), keys.getKeys("java/missing"), keys.getValues("java/missing")));
    step("missing from the cache", () -> keys.getValue("java/missing", ImmutableQueryOptions.builder()
        .consistencyMode(
            ConsistencyMode.createCachedConsistencyWithMaxAgeAndStale(Optional.of(60L), Optional.of(180L)))
        .build()));
    step("with its index", () -> keys.getConsulResponseWithValue("java/key").get().isKnownLeader());
    step("stale and consistent", () -> Arrays.asList(
        keys.getValue("java/key", ImmutableQueryOptions.builder().consistencyMode(ConsistencyMode.STALE).build())
            .isPresent(),
        keys.getValue("java/key", ImmutableQueryOptions.builder().consistencyMode(ConsistencyMode.CONSISTENT).build())
            .isPresent()));
    step("check and delete", () -> {
      long old = keys.getValue("java/key").get().getModifyIndex();
      keys.putValue("java/key", "newer");
      keys.deleteKey("java/key", ImmutableDeleteOptions.builder().cas(old).build());
      boolean kept = keys.getValue("java/key").isPresent();
      long now = keys.getValue("java/key").get().getModifyIndex();
      keys.deleteKey("java/key", ImmutableDeleteOptions.builder().cas(now).build());
      return Arrays.asList(kept, keys.getValue("java/key").isPresent());
    });
    step("transaction", () -> {
      String value = java.util.Base64.getEncoder().encodeToString("v".getBytes());
      return keys.performTransaction(
              ImmutableOperation.builder().verb("set").key("java/txn").value(value).build(),
              ImmutableOperation.builder().verb("get").key("java/txn").build())
          .getResponse().results().size();
    });
    step("delete all", () -> {
      keys.deleteKeys("java");
      return keys.getKeys("java");
    });
  }

  private static void locks() throws Exception {
    step("session", () -> {
      String one = sessions.createSession(ImmutableSession.builder().name("one").build()).getId();
      String two = sessions.createSession(ImmutableSession.builder().build()).getId();
      List<Object> said = new ArrayList<>();
      said.add(keys.acquireLock("java/lock", "me", one));
      said.add(keys.acquireLock("java/lock", "me", one));
      said.add(keys.acquireLock("java/lock", "other", two));
      said.add(keys.getSession("java/lock").get().equals(one));
      said.add(keys.releaseLock("java/lock", one));
      said.add(keys.getSession("java/lock").isPresent());
      said.add(keys.acquireLock("java/lock", "other", two));
      said.add(sessions.renewSession(one).get().getName());
      said.add(sessions.getSessionInfo(two).get().getBehavior());
      said.add(sessions.listSessions().size());
      sessions.destroySession(one);
      sessions.destroySession(two);
      said.add(sessions.getSessionInfo(two).isPresent());
      return said;
    });
    step("short session", () -> sessions.createSession(ImmutableSession.builder().ttl("1ms").build()));
    step("unknown session", () -> keys.acquireLock("java/lock", "me", "11111111-2222-3333-4444-555555555555"));
    step("election", () -> {
      LeaderElectionUtil election = new LeaderElectionUtil(consul);
      boolean before = election.getLeaderInfoForService("java").isPresent();
      Optional<String> elected = election.electNewLeaderForService("java", "info");
      return Arrays.asList(before, elected, election.releaseLockForService("java"));
    });
  }

  private static void watches() throws Exception {
    step("key cache", () -> {
      try (KVCache cache = KVCache.newCache(keys, "java-cache", 5)) {
        BlockingQueue<Map<String, com.orbitz.consul.model.kv.Value>> seen = listen(cache);
        List<Object> sizes = new ArrayList<>();
        sizes.add(next(seen).size());
        for (int i = 0; i < 3; i++) {
          keys.putValue("java-cache/" + i, "" + i);
          sizes.add(new TreeSet<>(next(seen).keySet()));
        }
        return sizes;
      } finally {
        keys.deleteKeys("java-cache");
      }
    });
    step("service cache", () -> {
      try (ServiceHealthCache cache = ServiceHealthCache.newCache(consul.healthClient(), "java-watched")) {
        BlockingQueue<Map<com.orbitz.consul.cache.ServiceHealthKey, com.orbitz.consul.model.health.ServiceHealth>>
            seen = listen(cache);
        List<Object> sizes = new ArrayList<>();
        sizes.add(next(seen).size());
        agent.register(80, 60L, "java-watched", "java-watched1", TAGS, META);
        agent.pass("java-watched1");
        sizes.add(next(seen).size());
        agent.fail("java-watched1");
        sizes.add(next(seen).size());
        return sizes;
      } finally {
        agent.deregister("java-watched1");
      }
    });
    step("catalog cache", () -> {
      try (ServiceCatalogCache cache = ServiceCatalogCache.newCache(consul.catalogClient(), "java-listed")) {
        BlockingQueue<Map<String, com.orbitz.consul.model.catalog.CatalogService>> seen = listen(cache);
        List<Object> ids = new ArrayList<>();
        ids.add(next(seen).keySet());
        agent.register(80, 60L, "java-listed", "java-listed1", TAGS, META);
        ids.add(new TreeSet<>(next(seen).keySet()));
        agent.register(81, 60L, "java-listed", "java-listed2", TAGS, META);
        ids.add(new TreeSet<>(next(seen).keySet()));
        return ids;
      } finally {
        agent.deregister("java-listed1");
        agent.deregister("java-listed2");
      }
    });
    step("check cache", () -> {
      agent.registerCheck("java-check", "java-check", 60L);
      agent.passCheck("java-check");
      await(() -> consul.healthClient().getChecksByState(State.PASS).getResponse().size() > 1);
      try (HealthCheckCache cache = HealthCheckCache.newCache(consul.healthClient(), State.PASS)) {
        BlockingQueue<Map<String, com.orbitz.consul.model.health.HealthCheck>> seen = listen(cache);
        boolean before = next(seen).containsKey("java-check");
        agent.failCheck("java-check");
        return Arrays.asList(before, next(seen).containsKey("java-check"));
      } finally {
        agent.deregisterCheck("java-check");
      }
    });
  }

  private static void services() throws Exception {
    step("register", () -> {
      agent.register(8080, 20L, "java-web", "java-web1", TAGS, META);
      return agent.getServices().get("java-web1");
    });
    step("registered", () -> agent.isRegistered("java-web1"));
    step("one service", () -> {
      com.orbitz.consul.model.agent.FullService found =
          agent.getService("java-web1", QueryOptions.BLANK).getResponse();
      return Arrays.asList(found.getId(), found.getPort(), found.getMeta(), found.getWeights());
    });
    step("unknown service", () -> agent.getService("java-none", QueryOptions.BLANK));
    step("states", () -> {
      List<Object> said = new ArrayList<>();
      agent.pass("java-web1", "fine");
      said.add(check("service:java-web1"));
      agent.warn("java-web1", "hot");
      said.add(check("service:java-web1"));
      agent.fail("java-web1", "broken");
      said.add(check("service:java-web1"));
      return said;
    });
    step("instances", () -> consul.healthClient().getAllServiceInstances("java-web").getResponse().stream()
        .map(each -> Arrays.asList(each.getService(), each.getChecks().size()))
        .collect(Collectors.toList()));
    step("healthy instances", () -> consul.healthClient().getHealthyServiceInstances("java-web").getResponse().size());
    step("in a block", () -> consul.healthClient().getAllServiceInstances("java-web",
        QueryOptions.blockSeconds(2, new BigInteger("0")).datacenter("dc1").build()).getResponse().size());
    step("by tag", () -> Arrays.asList(
        consul.healthClient().getAllServiceInstances("java-web", tagged("a")).getResponse().size(),
        consul.healthClient().getAllServiceInstances("java-web", tagged("b")).getResponse().size()));
    step("service checks", () -> consul.healthClient().getServiceChecks("java-web").getResponse().stream()
        .map(each -> Arrays.asList(each.getCheckId(), each.getStatus(), each.getServiceTags()))
        .collect(Collectors.toList()));
    step("maintenance", () -> {
      agent.toggleMaintenanceMode("java-web1", true, "why");
      Object during = new TreeSet<>(agent.getChecks().keySet());
      agent.toggleMaintenanceMode("java-web1", false);
      return Arrays.asList(during, new TreeSet<>(agent.getChecks().keySet()));
    });
    step("several checks", () -> {
      agent.register(ImmutableRegistration.builder().name("java-many").id("java-many1").address("localhost")
          .check(RegCheck.ttl(5))
          .addChecks(ImmutableRegCheck.copyOf(ImmutableRegCheck.builder().http("http://127.0.0.1:1/x").interval("30s")
              .timeout("1s").notes("n").deregisterCriticalServiceAfter("90m").build()))
          .addChecks(RegCheck.tcp("127.0.0.1:1", 30, 1))
          .enableTagOverride(true)
          .serviceWeights(ImmutableServiceWeights.builder().passing(3).warning(2).build())
          .build());
      Object shown = agent.getServices().get("java-many1");
      Object ids = new TreeSet<>(agent.getChecks().keySet());
      agent.deregister("java-many1");
      return Arrays.asList(shown, ids);
    });
    step("deregister", () -> {
      agent.deregister("java-web1");
      await(() -> consul.healthClient().getAllServiceInstances("java-web").getResponse().isEmpty());
      return agent.getServices().keySet();
    });
  }

  private static void checks() throws Exception {
    step("script", () -> {
      agent.registerCheck("java-script", "script", "/bin/true", 30);
      return agent.getChecks().get("java-script").getName();
    });
    step("http", () -> {
      agent.registerCheck("java-http", "http", new URL("http://127.0.0.1:1/check"), 30, "notes");
      return agent.getChecks().get("java-http").getNotes();
    });
    step("tcp", () -> {
      agent.registerCheck("java-tcp", "tcp", HostAndPort.fromParts("127.0.0.1", 1), 30);
      return agent.getChecks().get("java-tcp").getStatus();
    });
    step("ttl", () -> {
      agent.registerCheck("java-ttl", "ttl", 30);
      return agent.getChecks().get("java-ttl").getStatus();
    });
    step("full check", () -> {
      agent.registerCheck(ImmutableCheck.builder().id("java-full").name("full").ttl("10s").notes("n")
          .deregisterCriticalServiceAfter("90m").build());
      return agent.getChecks().get("java-full").getName();
    });
    step("unknown check", () -> {
      agent.passCheck("java-none");
      return "passed";
    });
    step("deregister checks", () -> {
      for (String id : new HashSet<>(agent.getChecks().keySet())) {
        agent.deregisterCheck(id);
      }
      return agent.getChecks().keySet();
    });
  }

  private static void catalog() throws Exception {
    step("datacenters", () -> consul.catalogClient().getDatacenters());
    step("catalog register", () -> {
      consul.catalogClient().register(ImmutableCatalogRegistration.builder().address("localhost").datacenter("dc1")
          .node("java-node").putNodeMeta("rack", "1")
          .service(ImmutableService.builder().address("localhost").addTags("t").id("java-c1").service("java-c").port(81)
              .putMeta("k", "v").enableTagOverride(true)
              .weights(ImmutableServiceWeights.builder().passing(42).warning(21).build()).build())
          .build());
      return consul.catalogClient().getService("java-c").getResponse();
    });
    step("nodes", () -> consul.catalogClient().getNodes(ImmutableQueryOptions.builder().datacenter("dc1").build())
        .getResponse().stream().map(each -> each.getNode()).sorted().collect(Collectors.toList()));
    step("nodes by their metadata", () -> consul.catalogClient()
        .getNodes(ImmutableQueryOptions.builder().addNodeMeta("rack:1").build())
        .getResponse().stream().map(each -> each.getNode()).collect(Collectors.toList()));
    step("a wait that ends", () -> {
      long start = System.nanoTime();
      consul.catalogClient().getNodes(QueryOptions.blockSeconds(1, new BigInteger("2147483647")).build());
      return System.nanoTime() - start >= 1_000_000_000L;
    });
    step("node", () -> consul.catalogClient().getNode("java-node").getResponse().getServices());
    step("services", () -> new TreeMap<>(consul.catalogClient().getServices().getResponse()));
    step("unknown datacenter", () -> consul.catalogClient()
        .getNodes(ImmutableQueryOptions.builder().datacenter("none").build()));
    step("catalog deregister", () -> {
      consul.catalogClient().deregister(
          ImmutableCatalogDeregistration.builder().node("java-node").serviceId("java-c1").build());
      Object left = consul.catalogClient().getService("java-c").getResponse();
      consul.catalogClient().deregister(ImmutableCatalogDeregistration.builder().node("java-node").build());
      return left;
    });
    step("prepared query", () -> {
      agent.register(80, 60L, "java-asked", "java-asked1", TAGS, META);
      agent.pass("java-asked1");
      await(() -> !consul.healthClient().getHealthyServiceInstances("java-asked").getResponse().isEmpty());
      String id = consul.preparedQueryClient().createPreparedQuery(ImmutablePreparedQuery.builder().name("java-query")
          .token("").service(ImmutableServiceQuery.builder().service("java-asked").onlyPassing(true).build()).build());
      Object found = consul.preparedQueryClient().execute(id).nodes().stream()
          .map(each -> each.getService()).collect(Collectors.toList());
      agent.deregister("java-asked1");
      return Arrays.asList(found, consul.preparedQueryClient().getPreparedQuery(id).get().getName());
    });
  }

  private static void others() throws Exception {
    step("agent", () -> {
      com.orbitz.consul.model.agent.Agent self = agent.getAgent();
      return Arrays.asList(self.getConfig().getNodeName(), self.getConfig().getDatacenter(),
          self.getConfig().getServer(), self.getConfig().getVersion(), self.getMember().getAddress(),
          self.getDebugConfig().get("ClientAddrs"));
    });
    step("members", () -> agent.getMembers().stream()
        .map(each -> Arrays.asList(each.getName(), each.getStatus(), each.getTags().get("role")))
        .collect(Collectors.toList()));
    step("leader", () -> Arrays.asList(
        consul.statusClient().getLeader().startsWith("127.0.0.1:"), consul.statusClient().getPeers().size()));
    step("servers", () -> consul.operatorClient().getRaftConfiguration().servers().size());
    step("coordinates", () -> consul.coordinateClient().getDatacenters().stream()
        .map(each -> each.getDatacenter()).collect(Collectors.toList()));
    step("event", () -> {
      String id = consul.eventClient().fireEvent("java-event", "payload").getId();
      await(() -> !consul.eventClient().listEvents("java-event").getEvents().isEmpty());
      com.orbitz.consul.model.event.Event found = consul.eventClient().listEvents("java-event").getEvents().get(0);
      return Arrays.asList(found.getName(), found.getPayload(), found.getId().equals(id));
    });
    step("all events", () -> consul.eventClient().listEvents().getEvents().size());
  }

  private static void tokens(HostAndPort guarded, String root) throws Exception {
    Consul keeper = Consul.builder().withHostAndPort(guarded).withAclToken(root).build();
    AclClient acl = keeper.aclClient();
    step("policies", () -> acl.listPolicies().stream().map(each -> each.name()).collect(Collectors.toList()));
    step("policy", () -> {
      String id = acl.createPolicy(ImmutablePolicy.builder().name("java-policy").description("d")
          .rules("key_prefix \"java/\" { policy = \"write\" }").build()).id();
      acl.updatePolicy(id, ImmutablePolicy.builder().name("java-renamed")
          .rules("key_prefix \"java/\" { policy = \"write\" }").build());
      return Arrays.asList(acl.readPolicy(id).name(), acl.readPolicyByName("java-renamed").name(),
          acl.readPolicy(id).hash(), acl.listPolicies().size());
    });
    step("bad policy", () -> acl.createPolicy(ImmutablePolicy.builder().name("a policy").build()));
    step("bad rules", () -> acl.createPolicy(
        ImmutablePolicy.builder().name("bad").rules("key \"a\" { policy = \"none\" }").build()));
    step("token", () -> {
      TokenResponse made = acl.createToken(ImmutableToken.builder().description("d").local(false)
          .addPolicies(ImmutablePolicyLink.builder().name("java-renamed").build()).build());
      Consul holder = Consul.builder().withHostAndPort(guarded).withAclToken(made.secretId()).build();
      List<Object> said = new ArrayList<>();
      said.add(holder.keyValueClient().putValue("java/key", "v"));
      said.add(failure(() -> holder.keyValueClient().putValue("other/key", "v")));
      said.add(failure(() -> holder.aclClient().listTokens()));
      said.add(holder.aclClient().readSelfToken().description());
      said.add(acl.readToken(made.accessorId()).policies().get(0).name());
      acl.updateToken(made.accessorId(), ImmutableToken.builder().local(false).description("e").build());
      said.add(acl.readToken(made.accessorId()).policies().size());
      said.add(failure(() -> holder.keyValueClient().putValue("java/key", "v")));
      said.add(acl.cloneToken(made.accessorId(), ImmutableToken.builder().description("f").build()).description());
      said.add(acl.listTokens().stream().map(each -> each.description()).sorted().collect(Collectors.toList()));
      acl.deleteToken(made.accessorId());
      said.add(acl.listTokens().size());
      said.add(failure(() -> holder.keyValueClient().getValue("java/key")));
      return said;
    });
    step("own token", () -> acl.readSelfToken().description());
    step("unknown token", () -> acl.readToken("11111111-2222-3333-4444-555555555555"));
    step("delete policy", () -> {
      acl.deletePolicy(acl.readPolicyByName("java-renamed").id());
      return acl.listPolicies().size();
    });
    step("tokens without ACLs", () -> consul.aclClient().listTokens());
    keeper.destroy();
  }

  private static void snapshot() throws Exception {
    step("snapshot", () -> {
      File file = File.createTempFile("snapshot", ".gz");
      keys.putValue("java/saved", "v");
      agent.register(80, new URL("http://127.0.0.1:1/health"), 1000L, "java-saved", "java-saved1", TAGS, META);
      Callable<Boolean> there =
          () -> !consul.healthClient().getAllServiceInstances("java-saved").getResponse().isEmpty();
      await(there);
      CompletableFuture<BigInteger> saved = new CompletableFuture<>();
      consul.snapshotClient().save(file, QueryOptions.BLANK, completing(saved));
      boolean indexed = saved.get(DEADLINE, TimeUnit.SECONDS).signum() > 0;
      agent.deregister("java-saved1");
      keys.deleteKey("java/saved");
      await(() -> !there.call());
      CompletableFuture<Void> restored = new CompletableFuture<>();
      consul.snapshotClient().restore(file, QueryOptions.BLANK, completing(restored));
      restored.get(DEADLINE, TimeUnit.SECONDS);
      file.delete();
      return Arrays.asList(indexed, there.call(), keys.getValueAsString("java/saved"));
    });
  }

  private static <T> Callback<T> completing(CompletableFuture<T> future) {
    return new Callback<T>() {
      @Override
      public void onResponse(T result) {
        future.complete(result);
      }

      @Override
      public void onFailure(Throwable error) {
        future.completeExceptionally(error);
      }
    };
  }

  private static Object failure(Callable<Object> run) throws Exception {
    try {
      return run.call();
    } catch (ConsulException error) {
      return error.getMessage();
    }
  }

  private static List<Object> check(String id) {
    com.orbitz.consul.model.health.HealthCheck found = agent.getChecks().get(id);
    return Arrays.asList(found.getStatus(), found.getOutput(), found.getServiceId(), found.getServiceName());
  }

  private static QueryOptions tagged(String tag) {
    return ImmutableQueryOptions.builder().addTag(tag).build();
  }

  private static <K, V> BlockingQueue<Map<K, V>> listen(ConsulCache<K, V> cache) throws Exception {
    BlockingQueue<Map<K, V>> seen = new LinkedBlockingQueue<>();
    cache.addListener(seen::add);
    cache.start();
    return seen;
  }

  private static <T> T next(BlockingQueue<T> seen) throws InterruptedException {
    T found = seen.poll(DEADLINE, TimeUnit.SECONDS);
    if (found == null) {
      throw new IllegalStateException("nothing came");
    }
    return found;
  }

  private static void await(Callable<Boolean> condition) throws Exception {
    long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(DEADLINE);
    while (!condition.call()) {
      if (System.nanoTime() > until) {
        throw new IllegalStateException("it did not happen in time");
      }
      Thread.sleep(10);
    }
  }
}
