// Command peer times the official Go client's lock, as one contender of the benchmarks.
//
// Rules
//   - It does what it is told on standard input, one command a line, and answers each with one line of JSON on
//     standard output: {"seconds": [times]}, or {"error": text}. It ends at the end of its input.
//   - The agent is the one that CONSUL_HTTP_ADDR names, as for every program on this client.
//   - The client is used as its documentation shows: LockOpts, Lock, Unlock, and defaults for everything else.
//
// Commands
//
//	given KEY COUNT    pairs of Lock and Unlock with one session, made before and renewed meanwhile
//	own KEY COUNT      pairs of Lock and Unlock, each with a session of its own
//	prepare COUNT      makes the clients and sessions of one holder and COUNT waiters
//	handoff KEY MS     lets the prepared ones have the lock once each, after so many milliseconds of waiting;
//	                   times from each Unlock to the next's Lock
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

const sessionTTL = "15s"

type contender struct {
	client  *api.Client
	session string
	done    chan struct{}
}

func newContender() (*contender, error) {
	client, err := api.NewClient(api.DefaultConfig())
	if err != nil {
		return nil, err
	}
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

type peer struct {
	one       *contender
	contended []*contender
}

func (p *peer) first() (*contender, error) {
	var err error
	if p.one == nil {
		p.one, err = newContender()
	}
	return p.one, err
}

func (p *peer) pairs(key, session string, count int) ([]float64, error) {
	times := make([]float64, 0, count)
	for range count {
		began := time.Now()
		lock, err := p.one.lock(key, session)
		if err != nil {
			return nil, err
		}
		if err := lock.Unlock(); err != nil {
			return nil, err
		}
		times = append(times, time.Since(began).Seconds())
	}
	return times, nil
}

func (p *peer) given(key string, count int) ([]float64, error) {
	one, err := p.first()
	if err != nil {
		return nil, err
	}
	return p.pairs(key, one.session, count)
}

func (p *peer) own(key string, count int) ([]float64, error) {
	if _, err := p.first(); err != nil {
		return nil, err
	}
	return p.pairs(key, "", count)
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

func (p *peer) obey(words []string) ([]float64, error) {
	number := func(at int) int {
		value, _ := strconv.Atoi(words[at])
		return value
	}
	switch {
	case len(words) == 3 && words[0] == "given":
		return p.given(words[1], number(2))
	case len(words) == 3 && words[0] == "own":
		return p.own(words[1], number(2))
	case len(words) == 2 && words[0] == "prepare":
		return p.prepare(number(1))
	case len(words) == 3 && words[0] == "handoff":
		return p.handoff(words[1], number(2))
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
