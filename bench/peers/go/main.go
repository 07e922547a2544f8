// Command peer times the official Go client's lock and semaphore, as one contender of the benchmarks.
//
// Rules
//   - It does what it is told on standard input, one command a line, and answers each with one line of JSON on
//     standard output: {"seconds": [times]}, or {"error": text}. It ends at the end of its input.
//   - The agent is the one that CONSUL_HTTP_ADDR names, as for every program on this client.
//   - The client is used as its documentation shows: LockOpts, Lock, Unlock, SemaphoreOpts, Acquire, Release, and
//     defaults for everything else.
//
// Commands
//
//	given KEY COUNT    pairs of Lock and Unlock with one session, made before and renewed meanwhile
//	own KEY COUNT      pairs of Lock and Unlock, each with a session of its own
//	prepare COUNT      makes the clients and sessions of one holder and COUNT waiters
//	handoff KEY MS     lets the prepared ones have the lock once each, after so many milliseconds of waiting;
//	                   times from each Unlock to the next's Lock
//	slot-given PREFIX COUNT, slot-own PREFIX COUNT
//	                   the same as given and own, with Acquire and Release of a semaphore
//	slots PREFIX MS HOLD TURNS
//	                   lets the prepared ones have a slot so many times each, for HOLD milliseconds each time,
//	                   after MS milliseconds of waiting; times from a Release to the next Acquire
//	hold KEY           takes the lock, with a session of its own, and keeps it
//	wait KEY           begins to wait for the lock, with a session of its own
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
)

const (
	sessionTTL = "15s"
	slots      = 3
)

type contender struct {
	client  *api.Client
	session string
	done    chan struct{}
}

// newClient makes a contender without a session.
func newClient() (*contender, error) {
	client, err := api.NewClient(api.DefaultConfig())
	return &contender{client: client}, err
}

func newContender() (*contender, error) {
	made, err := newClient()
	if err != nil {
		return nil, err
	}
	client := made.client
	entry := &api.SessionEntry{TTL: sessionTTL}
	session, _, err := client.Session().CreateNoChecks(entry, nil)
	if err != nil {
		return nil, err
	}
	done := make(chan struct{})
	// Destroys the session when done.
	go client.Session().RenewPeriodic(sessionTTL, session, nil, done)
	return &contender{client, session, done}, nil
}

func (c *contender) lock(key, session string) (*api.Lock, error) {
	lock, err := c.client.LockOpts(&api.LockOptions{Key: key, Session: session})
	if err != nil {
		return nil, err
	}
	lost, err := lock.Lock(nil)
	if err == nil && lost == nil {
		err = errors.New("not acquired")
	}
	return lock, err
}

func (c *contender) slot(prefix, session string) (*api.Semaphore, error) {
	semaphore, err := c.client.SemaphoreOpts(&api.SemaphoreOptions{Prefix: prefix, Limit: slots, Session: session})
	if err != nil {
		return nil, err
	}
	lost, err := semaphore.Acquire(nil)
	if err == nil && lost == nil {
		err = errors.New("no slot")
	}
	return semaphore, err
}

type peer struct {
	one       *contender
	contended []*contender
	kept      []*api.Lock
}

func (p *peer) first() (*contender, error) {
	var err error
	if p.one == nil {
		p.one, err = newContender()
	}
	return p.one, err
}

// A pair takes something and gives it back.
type pair func(c *contender, name, session string) error

func lockPair(c *contender, key, session string) error {
	lock, err := c.lock(key, session)
	if err != nil {
		return err
	}
	return lock.Unlock()
}

func slotPair(c *contender, prefix, session string) error {
	semaphore, err := c.slot(prefix, session)
	if err != nil {
		return err
	}
	return semaphore.Release()
}

func (p *peer) pairs(do pair, name string, given bool, count int) ([]float64, error) {
	one, err := p.first()
	if err != nil {
		return nil, err
	}
	session := ""
	if given {
		session = one.session
	}
	times := make([]float64, 0, count)
	for range count {
		began := time.Now()
		if err := do(one, name, session); err != nil {
			return nil, err
		}
		times = append(times, time.Since(began).Seconds())
	}
	return times, nil
}

func (p *peer) prepare(waiters int) ([]float64, error) {
	for _, old := range p.contended {
		close(old.done)
	}
	p.contended = nil
	for range waiters + 1 {
		made, err := newContender()
		if err != nil {
			return nil, err
		}
		p.contended = append(p.contended, made)
	}
	return []float64{}, nil
}

// handoff orders its contenders by the lock itself; the mutex is there for what a failure would break.
func (p *peer) handoff(key string, settling int) ([]float64, error) {
	if len(p.contended) == 0 {
		return nil, errors.New("prepare first")
	}
	first, err := p.contended[0].lock(key, p.contended[0].session)
	if err != nil {
		return nil, err
	}
	waiters := p.contended[1:]
	var (
		mutex    sync.Mutex
		released time.Time
		times    []float64
		failed   error
		group    sync.WaitGroup
	)
	contend := func(c *contender) {
		defer group.Done()
		lock, err := c.lock(key, c.session)
		mutex.Lock()
		times = append(times, time.Since(released).Seconds())
		released = time.Now()
		mutex.Unlock()
		if err == nil {
			err = lock.Unlock()
		}
		if err != nil {
			mutex.Lock()
			failed = err
			mutex.Unlock()
		}
	}
	group.Add(len(waiters))
	for _, waiter := range waiters {
		go contend(waiter)
	}
	time.Sleep(time.Duration(settling) * time.Millisecond)
	mutex.Lock()
	released = time.Now()
	mutex.Unlock()
	if err := first.Unlock(); err != nil {
		return nil, err
	}
	group.Wait()
	return times, failed
}

// slots matches each Acquire with the oldest Release before it that freed a slot for it.
func (p *peer) slots(prefix string, settling, hold, turns int) ([]float64, error) {
	if len(p.contended) <= slots {
		return nil, errors.New("prepare more")
	}
	var (
		mutex    sync.Mutex
		released []time.Time
		times    []float64
		failed   error
		group    sync.WaitGroup
	)
	start := make(chan struct{})
	note := func(err error) {
		mutex.Lock()
		defer mutex.Unlock()
		if err != nil {
			failed = err
		}
	}
	got := func() {
		mutex.Lock()
		defer mutex.Unlock()
		if len(released) > 0 {
			times = append(times, time.Since(released[0]).Seconds())
			released = released[1:]
		}
	}
	leave := func(semaphore *api.Semaphore) {
		mutex.Lock()
		released = append(released, time.Now())
		mutex.Unlock()
		note(semaphore.Release())
	}
	contend := func(c *contender, taken *api.Semaphore) {
		defer group.Done()
		for range turns {
			semaphore := taken
			taken = nil
			if semaphore == nil {
				var err error
				if semaphore, err = c.slot(prefix, c.session); err != nil {
					note(err)
					return
				}
				got()
				time.Sleep(time.Duration(hold) * time.Millisecond)
			} else {
				<-start
			}
			leave(semaphore)
		}
	}
	group.Add(len(p.contended))
	for at, c := range p.contended {
		var taken *api.Semaphore
		if at < slots {
			var err error
			if taken, err = c.slot(prefix, c.session); err != nil {
				return nil, err
			}
		}
		go contend(c, taken)
	}
	time.Sleep(time.Duration(settling) * time.Millisecond)
	close(start)
	group.Wait()
	return times, failed
}

func (p *peer) hold(key string) ([]float64, error) {
	one, err := newClient()
	if err != nil {
		return nil, err
	}
	lock, err := one.lock(key, "")
	p.kept = append(p.kept, lock)
	return []float64{}, err
}

func (p *peer) wait(key string) ([]float64, error) {
	one, err := newClient()
	if err != nil {
		return nil, err
	}
	go func() {
		lock, _ := one.lock(key, "")
		p.kept = append(p.kept, lock)
	}()
	return []float64{}, nil
}

func (p *peer) obey(words []string) ([]float64, error) {
	number := func(at int) int {
		value, _ := strconv.Atoi(words[at])
		return value
	}
	if len(words) == 0 {
		return nil, errors.New("an empty command")
	}
	command, arguments := words[0], len(words)-1
	switch {
	case command == "given" && arguments == 2:
		return p.pairs(lockPair, words[1], true, number(2))
	case command == "own" && arguments == 2:
		return p.pairs(lockPair, words[1], false, number(2))
	case command == "slot-given" && arguments == 2:
		return p.pairs(slotPair, words[1], true, number(2))
	case command == "slot-own" && arguments == 2:
		return p.pairs(slotPair, words[1], false, number(2))
	case command == "prepare" && arguments == 1:
		return p.prepare(number(1))
	case command == "handoff" && arguments == 2:
		return p.handoff(words[1], number(2))
	case command == "slots" && arguments == 4:
		return p.slots(words[1], number(2), number(3), number(4))
	case command == "hold" && arguments == 1:
		return p.hold(words[1])
	case command == "wait" && arguments == 1:
		return p.wait(words[1])
	}
	return nil, fmt.Errorf("no such command: %q", words)
}

func main() {
	var p peer
	answers := json.NewEncoder(os.Stdout)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		times, err := p.obey(strings.Fields(lines.Text()))
		answer := map[string]any{"seconds": times}
		if err != nil {
			answer = map[string]any{"error": err.Error()}
		}
		if answers.Encode(answer) != nil {
			return
		}
	}
}
