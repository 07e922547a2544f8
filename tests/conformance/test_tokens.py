"""ACL tokens and policies over the API: what is refused, what is shown, and what tokens may then do."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

import pytest

from consul_coord.server import AclConfig, ReferenceServer, ServerConfig, Token
from consul_coord.testing.agent import RealAgent
from tests.conformance.conftest import NEWEST
from tests.conformance.target import UNKNOWN, Target

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conformance.target import Answer

ROOT: Final = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
BUILTIN: Final = "00000000-0000-0000-0000-000000000001"
ANONYMOUS: Final = "00000000-0000-0000-0000-000000000002"
NO_UUID: Final = "index error: UUID must be 36 characters"
ACLS: Final = {"enabled": True, "default_policy": "deny"}


class Keeper(Target):
    """A Consul whose tokens and policies are kept here; names are this test's own."""

    def name(self, of: str) -> str:
        return f"{of}-{self.unique}"

    def by(self, token: str, method: str, path: str, body: object = b"") -> Answer:
        return self.ask(method, path, body, {"X-Consul-Token": token})

    def policy(self, of: str, rules: str = "", **fields: object) -> dict[str, Any]:
        answer = self.put("/v1/acl/policy", {"Name": self.name(of), "Rules": rules, **fields})
        assert answer.status == 200, answer.text
        made: dict[str, Any] = answer.json
        return made

    def token(self, *rules: str, **fields: object) -> dict[str, Any]:
        """Make a token with a policy for each of the texts."""
        policies = [{"ID": self.policy(f"p{uuid.uuid4().hex}", text)["ID"]} for text in rules]
        answer = self.put("/v1/acl/token", {"Policies": policies, **fields})
        assert answer.status == 200, answer.text
        made: dict[str, Any] = answer.json
        return made


@pytest.fixture(scope="module")
def guarded_agent(consul_binary: Path) -> Iterator[RealAgent]:
    acl = {**ACLS, "tokens": {"master": ROOT}}
    with RealAgent(binary=consul_binary, token=ROOT, config={"acl": acl}) as agent:
        yield agent


@pytest.fixture(params=["reference", "newest", pytest.param("agent", marks=pytest.mark.agent)])
def target(request: pytest.FixtureRequest) -> Iterator[Keeper]:
    if request.param == "agent":
        agent: RealAgent = request.getfixturevalue("guarded_agent")
        yield Keeper("agent", agent.address, token=ROOT)
        return
    acl = AclConfig(tokens={ROOT: Token(management=True)})
    version = NEWEST if request.param == "newest" else ServerConfig().version
    with ReferenceServer(config=ServerConfig(acl=acl, version=version)) as server:
        yield Keeper(request.param, server.address, token=ROOT)


def told(target: Keeper, answer: Answer, status: int, text: str) -> None:
    """Hold a refusal against 1.8's; later versions have other words for it."""
    if target.is_1_8:
        assert (answer.status, answer.text) == (status, text)
    else:
        assert answer.status >= 400


def test_a_policy_is_created_read_renamed_and_deleted(target: Keeper) -> None:
    name, renamed = target.name("p"), target.name("q")
    sent = {"Name": name, "Description": "d", "Rules": 'key "a" { policy = "read" }', "Datacenters": ["dc1"]}
    made = target.put("/v1/acl/policy", sent).json
    assert list(made) == [
        "ID",
        "Name",
        "Description",
        "Rules",
        "Datacenters",
        "Hash",
        "CreateIndex",
        "ModifyIndex",
    ]
    assert {field: made[field] for field in sent} == sent
    place = f"/v1/acl/policy/{made['ID']}"
    assert target.get(place).json == target.get(f"/v1/acl/policy/name/{name.upper()}").json == made
    changed = target.put(place, {"Name": renamed, "Rules": ""}).json
    assert (changed["Name"], changed["CreateIndex"]) == (renamed, made["CreateIndex"])
    assert changed["ModifyIndex"] > made["ModifyIndex"]
    assert changed["Hash"] != made["Hash"]
    listed = {each["Name"]: each for each in target.get("/v1/acl/policies").json}
    assert listed[renamed]["Datacenters"] is None
    assert ("Rules" in listed[renamed], name in listed) == (False, False)
    assert target.delete(place).json is True
    assert target.delete(place).json is True
    told(target, target.get(place), 403, "ACL not found")


def test_the_hash_is_that_of_what_is_said(target: Keeper) -> None:
    made = target.put("/v1/acl/policy", {"Name": "p1"}).json
    assert made["Hash"] == "sOkprzjzxJjxmuaanraSGNdv8otKmUfA3zcjmL9sIsY="
    assert target.token(Local=True)["Hash"] == "phJYEP8TihveNo6aOJCxLxq34AAOhSYayisOMnod+Kc="
    assert target.delete(f"/v1/acl/policy/{made['ID']}").status == 200


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"Name": ""}, 500, "Invalid Policy: no Name is set"),
        (
            {"Name": "bad name"},
            500,
            "Invalid Policy: invalid Name. Only alphanumeric characters, '-' and '_' are allowed",
        ),
        (
            {"Name": "x" * 129},
            500,
            "Invalid Policy: invalid Name. Only alphanumeric characters, '-' and '_' are allowed",
        ),
        (
            {"Name": "Global-Management"},
            500,
            'Invalid Policy: A Policy with Name "Global-Management" already exists',
        ),
        ({"Name": "n", "ID": UNKNOWN}, 400, "Bad request: Cannot specify the ID when creating a new policy"),
        ({"Name": "n", "Foo": 1}, 400, 'Bad request: Policy decoding failed: json: unknown field "Foo"'),
        (b"", 400, "Bad request: Policy decoding failed: EOF"),
        (
            b"[]",
            400,
            (
                "Bad request: Policy decoding failed: json: cannot unmarshal array into Go value of type "
                "struct { Hash string; *structs.Alias }"
            ),
        ),
        (
            {"Name": 5},
            400,
            (
                "Bad request: Policy decoding failed: json: cannot unmarshal number into Go struct field "
                ".Name of type string"
            ),
        ),
        (
            {"Name": "n", "Namespace": "x"},
            400,
            (
                'Bad request: Policy decoding failed: json: unknown field "Namespace" - Namespaces are a '
                "Consul Enterprise feature"
            ),
        ),
    ],
)
def test_a_policy_that_is_refused(target: Keeper, body: object, status: int, text: str) -> None:
    told(target, target.put("/v1/acl/policy", body), status, text)


_KEY: Final = '&acl.KeyRule{Prefix:"a", Policy:"%s", EnterpriseRule:acl.EnterpriseRule{}}'
_PARSE: Final = "Failed to parse ACL rules: At "


@pytest.mark.parametrize(
    ("rules", "refused"),
    [
        ('key_prefix "a/" { policy = "write" } # c\n// d\n/* e */', ""),
        ('{"key_prefix": {"b/": {"policy": "read"}}}', ""),
        ('{"key": [{"a": [{"policy": "read"}]}]}', ""),
        ('operator = "read"\nkeyring="deny"\nacl = "read"', ""),
        ('acl = ""', ""),
        ('KEY "a" { POLICY = "READ" }', ""),
        ('key { "" = { policy = "list" } }', ""),
        ('nonsense "a" { policy = "read" }\nmesh = "read"', ""),
        ('service "s" { policy = "write" intentions = "read" }', ""),
        ('session_prefix "" { policy = "write", sentinel { code = "x" } }', ""),
        ('key_prefix "a" { policy = "wrong" }', f"Invalid key_prefix policy: {_KEY % 'wrong'}"),
        ('key "a" { }', f"Invalid key policy: {_KEY % ''}"),
        ('key "a" "b" { policy = "read" }', f"Invalid key policy: {_KEY % ''}"),
        ('key "a" { policy = "read" policy = "wrong" }', f"Invalid key policy: {_KEY % 'wrong'}"),
        ('key "a" { policy = 5 }', f"Invalid key policy: {_KEY % '5'}"),
        (
            'key "a" { policy = <<E\nread\nE\n }',
            f"Invalid key policy: {_KEY % 'read'}".replace('d"', 'd\\n"'),
        ),
        (
            'node "a" { policy = "list" } key "a" { policy = "no" }',
            f"Invalid key policy: {_KEY % 'no'}",
        ),
        (
            'node_prefix "a" { policy = "list" }',
            (
                'Invalid node_prefix policy: &acl.NodeRule{Name:"a", Policy:"list", '
                "EnterpriseRule:acl.EnterpriseRule{}}"
            ),
        ),
        ('agent "a" {}', 'Invalid agent policy: &acl.AgentRule{Node:"a", Policy:""}'),
        ('event "a" {}', 'Invalid event policy: &acl.EventRule{Event:"a", Policy:""}'),
        ('query "a" {}', 'Invalid query policy: &acl.PreparedQueryRule{Prefix:"a", Policy:""}'),
        ('session "a" {}', 'Invalid session policy: &acl.SessionRule{Node:"a", Policy:""}'),
        (
            'service "a" { policy = "read" intentions = "no" }',
            (
                'Invalid service intentions policy: &acl.ServiceRule{Name:"a", Policy:"read", '
                'Intentions:"no", EnterpriseRule:acl.EnterpriseRule{}}'
            ),
        ),
        ('acl = "list"', 'Invalid acl policy: "list"'),
        ('{"operator": 5}', 'Invalid operator policy: "5"'),
        ('key "a" { policy = "read"', f"{_PARSE}1:27: object expected closing RBRACE got: EOF"),
        ('key "a', f"{_PARSE}1:7: literal not terminated"),
        ("/* a", f"{_PARSE}1:5: comment not terminated"),
        ("$", f"{_PARSE}1:1: illegal char"),
        ("[]", f"{_PARSE}1:1: expected: IDENT | STRING | ASSIGN | LBRACE got: LBRACK"),
        ('= "x"', f"{_PARSE}1:1: no object keys found!"),
        ("operator = read", f"{_PARSE}1:12: Unknown token: 1:12 IDENT read"),
        ("operator = true", f"{_PARSE}1:12: root.operator: unknown type for string *ast.LiteralType"),
        ('key = "read"', f"{_PARSE}1:7: unknown slice type: *ast.LiteralType"),
        (
            'key "a" { policy = ["read"] }',
            f"{_PARSE}1:20: root.key[0].Policy: unknown type for string *ast.ListType",
        ),
        ('key "a" = { policy = "read" }', f"{_PARSE}1:9: nested object expected: LBRACE got: ASSIGN"),
        (
            'operator "read"',
            f"{_PARSE}1:16: key 'operator \"read\"' expected start of object ('{{') or assignment ('=')",
        ),
    ],
)
def test_the_rules_of_a_policy(target: Keeper, rules: str, refused: str) -> None:
    answer = target.put("/v1/acl/policy", {"Name": target.name("rules"), "Rules": rules})
    if refused:
        told(target, answer, 500, refused)
    else:
        assert (answer.status, answer.json["Rules"]) == (200, rules)
        assert target.delete(f"/v1/acl/policy/{answer.json['ID']}").json is True


def test_a_policy_can_be_changed_within_limits(target: Keeper) -> None:
    one, other = target.policy("one"), target.policy("other")
    place = f"/v1/acl/policy/{one['ID']}"
    twice = f'Invalid Policy: A policy with name "{other["Name"]}" already exists'
    told(target, target.put(place, {"Name": other["Name"]}), 500, twice)
    mismatch = "Bad request: Policy ID in URL and payload do not match"
    told(target, target.put(place, {"ID": other["ID"], "Name": "n"}), 400, mismatch)
    unknown = target.put(f"/v1/acl/policy/{UNKNOWN}", {"Name": "n"})
    told(target, unknown, 500, f"cannot find policy {UNKNOWN}")
    told(target, target.put("/v1/acl/policy/x", {"Name": "n"}), 500, "Policy ID invalid UUID")
    told(target, target.delete("/v1/acl/policy/x"), 500, f"failed acl policy lookup: {NO_UUID}")
    told(target, target.get("/v1/acl/policy/x"), 500, f"failed acl policy lookup: {NO_UUID}")
    told(target, target.delete("/v1/acl/policy/"), 400, "Bad request: Missing policy ID")
    told(target, target.get("/v1/acl/policy/name/"), 400, "Bad request: Missing policy Name")


def test_the_builtin_policy_stays(target: Keeper) -> None:
    place = f"/v1/acl/policy/{BUILTIN}"
    builtin = target.get(place).json
    assert (builtin["Name"], 'acl = "write"' in builtin["Rules"]) == ("global-management", True)
    rules = "Changing the Rules for the builtin global-management policy is not permitted"
    told(target, target.put(place, {"Name": builtin["Name"], "Rules": ""}), 500, rules)
    datacenters = "Changing the Datacenters of the builtin global-management policy is not permitted"
    sent = {"Name": builtin["Name"], "Rules": builtin["Rules"], "Datacenters": ["dc1"]}
    told(target, target.put(place, sent), 500, datacenters)
    deleted = "Delete operation not permitted on the builtin global-management policy"
    told(target, target.delete(place), 500, deleted)
    assert target.get(place).json == builtin


def test_a_token_is_created_read_changed_cloned_and_deleted(target: Keeper) -> None:
    one, other = target.policy("one"), target.policy("other")
    links = [{"ID": one["ID"]}, {"Name": other["Name"].upper()}, {"ID": other["ID"], "Name": "ignored"}]
    made = target.put("/v1/acl/token", {"Description": "d", "Policies": links}).json
    fields = ["AccessorID", "SecretID", "Description", "Policies", "Local", "CreateTime", "Hash"]
    assert list(made) == [*fields, "CreateIndex", "ModifyIndex"]
    shown = [{"ID": each["ID"], "Name": each["Name"]} for each in (one, other)]
    assert (made["Policies"], made["Local"]) == (shown, False)
    place = f"/v1/acl/token/{made['AccessorID']}"
    assert target.get(place).json == made
    assert target.by(made["SecretID"], "GET", "/v1/acl/token/self").json == made

    twin = target.put(f"{place}/clone", {"SecretID": UNKNOWN}).json
    assert (twin["Description"], twin["Policies"]) == ("d", shown)
    assert twin["SecretID"] not in (UNKNOWN, made["SecretID"])
    assert target.put(f"{place}/clone", {"Description": "e"}).json["Description"] == "e"

    changed = target.put(place, {"Description": "f"}).json
    assert (changed["Description"], "Policies" in changed) == ("f", False)
    assert (changed["SecretID"], changed["CreateTime"]) == (made["SecretID"], made["CreateTime"])
    listed = {each["AccessorID"]: each for each in target.get("/v1/acl/tokens").json}
    assert {made["AccessorID"], twin["AccessorID"]} < set(listed)
    assert listed[ANONYMOUS]["Description"] == "Anonymous Token"
    own = target.get("/v1/acl/token/self").json["Description"]
    if target.is_1_8:
        assert ("SecretID" in listed[twin["AccessorID"]], own) == (False, "Master Token")
    else:
        assert listed[twin["AccessorID"]]["SecretID"] == twin["SecretID"]
        assert own == "Initial Management Token"
    of_policy = target.get(f"/v1/acl/tokens?policy={one['ID']}").json
    assert made["AccessorID"] not in [each["AccessorID"] for each in of_policy]
    assert twin["AccessorID"] in [each["AccessorID"] for each in of_policy]
    assert target.get(f"/v1/acl/tokens?role={UNKNOWN}").json == []
    malformed = target.get("/v1/acl/tokens?role=none")
    is_refused = malformed.text.startswith("failed acl token lookup: index error: UUID")
    assert malformed.text.strip() == "[]" or (is_refused and target.kind == "agent" and not target.is_1_8)

    assert target.delete(f"/v1/acl/policy/{one['ID']}").json is True
    assert target.get(f"/v1/acl/token/{twin['AccessorID']}").json["Policies"] == shown[1:]
    assert target.delete(place).json is True
    assert target.by(made["SecretID"], "GET", "/v1/kv/k").status == 403
    told(target, target.get(place), 403, "ACL not found")
    told(target, target.put(f"{place}/clone", {}), 403, "ACL not found")


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (
            {"AccessorID": "x"},
            500,
            f"Failed acl token lookup by accessor: failed acl token lookup: {NO_UUID}",
        ),
        ({"SecretID": "x"}, 500, "Invalid Token: SecretID is not a valid UUID"),
        ({"SecretID": ROOT}, 500, "Invalid Token: SecretID is already in use"),
        (
            {"AccessorID": f"{ANONYMOUS[:-1]}5"},
            500,
            'Invalid Token: UUIDs with the prefix "00000000-0000-0000-0000-0000000000" are reserved',
        ),
        ({"Policies": [{"ID": UNKNOWN}]}, 500, f'No such ACL policy with ID "{UNKNOWN}"'),
        ({"Policies": [{"Name": "none"}]}, 500, 'No such ACL policy with name "none"'),
        (
            {"Policies": [{"ID": "x"}]},
            500,
            f'Error looking up policy for id "x": failed acl policy lookup: {NO_UUID}',
        ),
        ({"Type": "client"}, 400, 'Bad request: Token decoding failed: json: unknown field "Type"'),
        (b"", 400, "Bad request: Token decoding failed: EOF"),
        (
            {"Policies": ["r"]},
            400,
            (
                "Bad request: Token decoding failed: json: cannot unmarshal string into Go struct field "
                ".Policies of type structs.ACLTokenPolicyLink"
            ),
        ),
        ({"AuthMethod": "x"}, 500, "AuthMethod field is disallowed outside of Login"),
    ],
)
def test_a_token_that_is_refused(target: Keeper, body: object, status: int, text: str) -> None:
    told(target, target.put("/v1/acl/token", body), status, text)


def test_the_case_of_ids_does_not_matter_and_that_of_secrets_does(target: Keeper) -> None:
    accessor, secret = (str(uuid.uuid4()).upper() for _ in range(2))
    made = target.token(AccessorID=accessor, SecretID=secret)
    assert (made["AccessorID"], made["SecretID"]) == (accessor, secret)
    assert target.get(f"/v1/acl/token/{accessor.lower()}").json == made
    immutable = target.put(f"/v1/acl/token/{accessor.lower()}", {})
    told(target, immutable, 500, "The ACL Token AccessorID field is immutable")
    assert target.put(f"/v1/acl/token/{accessor}", {}).status == 200
    assert target.by(secret, "GET", "/v1/acl/token/self").status == 200
    assert target.by(secret.lower(), "GET", "/v1/acl/token/self").status == 403
    taken = target.put("/v1/acl/token", {"AccessorID": accessor.lower()})
    told(target, taken, 500, "Invalid Token: AccessorID is already in use")
    place = f"/v1/acl/policy/{target.policy('p')['ID'].upper()}"
    assert (target.get(place).status, target.delete(place).json) == (200, True)
    assert target.get(place).status == 403
    assert target.delete(f"/v1/acl/token/{accessor.lower()}").json is True
    assert target.get(f"/v1/acl/token/{accessor}").status == 403


def test_a_token_can_be_changed_within_limits(target: Keeper) -> None:
    made = target.token()
    accessor, place = made["AccessorID"], f"/v1/acl/token/{made['AccessorID']}"
    used = "Invalid Token: AccessorID is already in use"
    told(target, target.put("/v1/acl/token", {"AccessorID": accessor}), 500, used)
    mismatch = "Bad request: Token Accessor ID in URL and payload do not match"
    told(target, target.put(place, {"AccessorID": ANONYMOUS}), 400, mismatch)
    secret = target.put(place, {"SecretID": UNKNOWN})
    told(target, secret, 500, "Changing a tokens SecretID is not permitted")
    told(target, target.put(place, {"Local": True}), 500, f"cannot toggle local mode of {accessor}")
    unknown = target.put(f"/v1/acl/token/{UNKNOWN}", {})
    told(target, unknown, 500, f'Cannot find token "{UNKNOWN}"')
    told(target, target.get("/v1/acl/token/"), 400, "Bad request: Missing token ID")
    told(target, target.delete("/v1/acl/token/x"), 500, "Accessor ID is missing or an invalid UUID")
    anonymous = "Delete operation not permitted on the anonymous token"
    told(target, target.delete(f"/v1/acl/token/{ANONYMOUS}"), 500, anonymous)
    own = target.get("/v1/acl/token/self").json["AccessorID"]
    kept = "Deletion of the request's authorization token is not permitted"
    told(target, target.delete(f"/v1/acl/token/{own}"), 500, kept)
    assert target.get(place).json == made


@pytest.mark.parametrize(
    ("rules", "read", "written"),
    [
        (('key "k" { policy = "write" }',), 200, 200),
        (('key "k" { policy = "write" } key "k" { policy = "read" }',), 200, 200),
        (('key "k" { policy = "read" }', 'key "k" { policy = "write" }'), 200, 200),
        (('key "k" { policy = "deny" }', 'key "k" { policy = "write" }'), 403, 403),
        (('key_prefix "" { policy = "write" }', 'key "k" { policy = "read" }'), 200, 403),
        (('{"key_prefix": {"k": {"policy": "read"}}}',), 200, 403),
        (('nonsense "k" { policy = "write" }',), 403, 403),
    ],
)
def test_what_policies_permit_together(
    target: Keeper, rules: tuple[str, ...], read: int, written: int
) -> None:
    assert target.put("/v1/kv/k", b"v").status == 200
    secret = target.token(*rules)["SecretID"]
    assert target.by(secret, "GET", "/v1/kv/k").status == read
    assert target.by(secret, "PUT", "/v1/kv/k", b"v").status == written


def test_a_change_of_a_policy_is_felt_at_once(target: Keeper) -> None:
    policy = target.policy("p", 'key "k" { policy = "write" }')
    secret = target.put("/v1/acl/token", {"Policies": [{"ID": policy["ID"]}]}).json["SecretID"]
    assert target.by(secret, "PUT", "/v1/kv/k", b"v").status == 200
    sent = {"Name": policy["Name"], "Rules": 'key "k" { policy = "read" }'}
    assert target.put(f"/v1/acl/policy/{policy['ID']}", sent).status == 200
    assert target.by(secret, "PUT", "/v1/kv/k", b"v").status == 403
    sent = {"Name": policy["Name"], "Rules": 'key "k" { policy = "write" }', "Datacenters": ["elsewhere"]}
    assert target.put(f"/v1/acl/policy/{policy['ID']}", sent).status == 200
    assert target.by(secret, "GET", "/v1/kv/k").status == 403


def test_the_anonymous_token_can_be_given_policies(target: Keeper) -> None:
    policy = target.policy("p", 'key "k" { policy = "write" }')
    place = f"/v1/acl/token/{ANONYMOUS}"
    described = {"Description": "Anonymous Token"}
    changed = target.put(place, {**described, "Policies": [{"ID": policy["ID"]}]}).json
    assert changed["SecretID"] == "anonymous"
    assert target.by("", "PUT", "/v1/kv/k", b"v").status == 200
    assert target.put(place, described).status == 200
    assert target.by("", "PUT", "/v1/kv/k", b"v").status == 403


def test_who_may_read_and_who_may_change(target: Keeper) -> None:
    reader, writer = (target.token(f'acl = "{policy}"') for policy in ("read", "write"))
    nobody = target.token()
    place = f"/v1/acl/token/{nobody['AccessorID']}"
    assert target.by(reader["SecretID"], "GET", place).json["SecretID"] == "<hidden>"
    assert target.by(writer["SecretID"], "GET", place).json == nobody
    assert target.by(reader["SecretID"], "GET", "/v1/acl/policies").status == 200
    assert target.by(reader["SecretID"], "GET", "/v1/acl/token/self").json == reader
    assert target.by(writer["SecretID"], "PUT", "/v1/acl/policy", {"Name": target.name("w")}).status == 200
    denied = [
        target.by(reader["SecretID"], "PUT", "/v1/acl/token", {}),
        target.by(reader["SecretID"], "PUT", "/v1/acl/policy", {"Name": "n"}),
        target.by(reader["SecretID"], "DELETE", place),
        target.by(reader["SecretID"], "PUT", f"{place}/clone", {}),
        target.by(reader["SecretID"], "GET", "/v1/snapshot"),
        target.by(nobody["SecretID"], "GET", place),
        target.by(nobody["SecretID"], "GET", "/v1/acl/tokens"),
        target.by("", "GET", "/v1/acl/policies"),
    ]
    assert [answer.status for answer in denied] == [403] * len(denied)
    assert all(answer.text.startswith("Permission denied") for answer in denied)
    told(target, target.by("", "GET", "/v1/acl/token/self"), 403, "ACL not found")
    told(target, target.by(UNKNOWN, "GET", "/v1/acl/token/self"), 403, "ACL not found")


@pytest.mark.parametrize("kind", ["reference", pytest.param("agent", marks=pytest.mark.agent)])
def test_the_first_token_is_made_once(kind: str, request: pytest.FixtureRequest) -> None:
    """Nobody may change ACLs before, whatever the default policy; afterwards there is no second first one."""
    with (
        RealAgent(
            binary=request.getfixturevalue("consul_binary"),
            config={"acl": {**ACLS, "default_policy": "allow"}},
        )
        if kind == "agent"
        else ReferenceServer(config=ServerConfig(acl=AclConfig(default_policy="allow")))
    ) as server:
        target = Keeper(kind, server.address)
        assert target.put("/v1/acl/policy", {"Name": "n"}).status == 403
        assert target.get("/v1/acl/tokens").status == 403
        made = target.put("/v1/acl/bootstrap").json
        assert made["Description"] == "Bootstrap Token (Global Management)"
        assert [policy["ID"] for policy in made["Policies"]] == [BUILTIN]
        assert target.by(made["SecretID"], "PUT", "/v1/acl/policy", {"Name": "n"}).status == 200
        again = target.put("/v1/acl/bootstrap")
        index = f"(reset index: {made['ModifyIndex']})"
        told(target, again, 403, f"Permission denied: ACL bootstrap no longer allowed {index}")


@pytest.mark.parametrize(
    "call",
    [
        ("GET", "policies"),
        ("PUT", "policy"),
        ("GET", "token/self"),
        ("DELETE", "token/x"),
        ("PUT", "bootstrap"),
        ("GET", "tokens?dc=none"),
        ("GET", "tokens?ns=x"),
    ],
)
@pytest.mark.parametrize("kind", ["reference_server", pytest.param("real_agent", marks=pytest.mark.agent)])
def test_without_acls_there_are_no_tokens(
    kind: str, call: tuple[str, str], request: pytest.FixtureRequest
) -> None:
    target = Target(kind, request.getfixturevalue(kind).address)
    answer = target.ask(call[0], f"/v1/acl/{call[1]}")
    assert (answer.status, answer.text) == (401, "ACL support disabled")
