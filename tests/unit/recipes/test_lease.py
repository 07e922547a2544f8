"""How long a client may believe in a session."""

from __future__ import annotations

import math

import pytest

from consul_coord.models import LossReason
from consul_coord.recipes.session.lease import AllOf, Lease


@pytest.fixture
def lease() -> Lease:
    return Lease(drift=0.05)


def test_nothing_is_believed_before_the_first_confirmation(lease: Lease) -> None:
    assert not lease.is_valid(0.0)
    assert lease.remaining(0.0) == 0.0
    assert lease.ended_by is None


def test_it_counts_from_the_sending_less_the_drift(lease: Lease) -> None:
    lease.confirm(sent_at=100.0, horizon=10.0)
    assert lease.valid_until == pytest.approx(109.5)
    assert lease.longest == pytest.approx(9.5)
    assert lease.renew_at() == pytest.approx(104.0)
    assert lease.renew_at(1.0) == pytest.approx(104.3)
    assert lease.is_valid(109.49)
    assert not lease.is_valid(109.5)
    assert lease.remaining(105.0) == pytest.approx(4.5)
    assert lease.remaining(200.0) == 0.0


def test_it_goes_backwards_only_when_less_is_granted_than_was_assumed(lease: Lease) -> None:
    lease.confirm(sent_at=100.0, horizon=10.0)
    lease.confirm(sent_at=90.0, horizon=10.0)
    assert lease.valid_until == pytest.approx(109.5)
    assert lease.sent_at == 100.0
    lease.confirm(sent_at=101.0, horizon=1.0)
    assert lease.valid_until == pytest.approx(101.95)
    assert lease.longest == pytest.approx(0.95)


def test_without_a_horizon_it_has_no_end_and_needs_no_renewal(lease: Lease) -> None:
    lease.confirm(sent_at=100.0, horizon=None)
    assert lease.is_valid(1e12)
    assert lease.remaining(1e12) == lease.longest == lease.renew_at(0.5) == math.inf
    assert lease.is_fit(1e12), "an acquire renews it, though there is nothing to renew"


def test_something_is_begun_only_with_enough_of_it_left(lease: Lease) -> None:
    assert not lease.is_fit(100.0), "it was never confirmed"
    lease.confirm(sent_at=100.0, horizon=10.0)
    assert lease.is_fit(107.0)
    assert not lease.is_fit(107.2)
    lease.end(LossReason.SESSION_GONE)
    assert not lease.is_fit(100.0)


def test_an_end_is_for_good_and_has_one_reason(lease: Lease) -> None:
    lease.confirm(sent_at=100.0, horizon=10.0)
    assert lease.end(LossReason.SESSION_GONE)
    assert not lease.end(LossReason.EXPIRED)
    lease.confirm(sent_at=101.0, horizon=10.0)
    assert lease.ended_by is LossReason.SESSION_GONE
    assert not lease.is_valid(101.0)
    assert lease.remaining(101.0) == 0.0


def test_contact_is_back_with_a_confirmation(lease: Lease) -> None:
    lease.in_contact = False
    lease.confirm(sent_at=1.0, horizon=10.0)
    assert lease.in_contact


@pytest.mark.parametrize("first_is_shorter", [True, False])
def test_several_leases_are_as_short_as_the_shortest(first_is_shorter: bool) -> None:
    short, long = Lease(drift=0.0), Lease(drift=0.0)
    short.confirm(sent_at=100.0, horizon=10.0)
    long.confirm(sent_at=103.0, horizon=20.0)
    both = AllOf([short, long] if first_is_shorter else [long, short])
    assert (both.valid_until, both.longest, both.remaining(104.0)) == (110.0, 10.0, 6.0)
    assert (both.is_valid(109.9), both.is_valid(110.0)) == (True, False)
    assert (both.ended_by, both.in_contact) == (None, True)
    long.in_contact = False
    assert (both.ended_by, both.in_contact) == (None, False)
    long.end(LossReason.SESSION_GONE)
    assert both.ended_by is LossReason.SESSION_GONE
    assert not both.is_valid(104.0)
    assert both.remaining(104.0) == 0.0
