package lane

import (
	"sync"
	"time"
)

// A leader that stood still finds, when it goes on, what the others sent it just before, and takes it for new: until it hears
// of the one that they have chosen meanwhile, a heartbeat later, it seems to be followed. So renewals do
// not count for that moment.
const (
	// silence is how long a leader that is followed may seem not to be heard: heartbeats come every second.
	silence = 3 * time.Second
	// deposed is how long a leader may not know that it is none any more: more than two heartbeats.
	deposed = 2500 * time.Millisecond
	// hush is how long a server may not be heard of until it may have been replaced as a leader: that takes others 4 s at least.
	hush = 2 * time.Second
	// inOffice is how long a leader has to be followed without a silence until it is not expected to be replaced at any moment.
	inOffice = 10 * time.Second
)

// contact is what a holder knows of the leader of its pool's consumer, and of when the others heard it. It is safe for
// concurrent use.
type contact struct {
	mu    sync.Mutex
	by    leadership
	last  time.Time // when the leader was heard by a majority; zero while that is not known
	told  time.Time // when it said so
	spoke time.Time // when a silence was over; zero while there was none
	begun time.Time // when by was met first
	asked time.Time // when a lane had it asked last
	// watched is when there was word of all servers, from leader; troubled when one of them was silent, or another one led.
	watched, troubled time.Time
	leader            leadership
	// suspect was leading before the silence and is again, or still takes itself for the leader.
	suspect leadership
}

// heard books what by said at now: that a majority heard it at a time. It reports false when that may not be
// so, because by was silent until a moment ago, for so long that another may have been chosen.
func (c *contact) heard(by leadership, at, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.last.IsZero() && (at.Sub(c.last) > silence || now.Sub(c.told) > silence) {
		c.spoke, c.suspect = now, ""
		if by == c.by {
			c.suspect = by
		}
	}
	if by != c.by {
		c.begun = now
	}
	c.by, c.told = by, now
	if at.After(c.last) {
		c.last = at
	}
	return by != c.suspect || now.Sub(c.spoke) >= deposed
}

// settled reports whether the leader has been in office for a while, and heard all the time.
func (c *contact) settled(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.last.IsZero() && now.Sub(c.last) <= silence && now.Sub(c.begun) >= inOffice && now.Sub(c.spoke) >= inOffice
}

// watch books what leader said at now: for how long the server that it has not heard of for longest is silent.
func (c *contact) watch(leader leadership, silent time.Duration, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if leader == "" || leader != c.leader || silent > hush || now.Sub(c.watched) > hush {
		c.troubled = now
	}
	c.leader, c.watched = leader, now
}

// calm reports whether no server can take itself for the leader of anything that the others have another leader for: none
// was silent for so long, and any that had been would know by now.
func (c *contact) calm(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return now.Sub(c.watched) <= hush && now.Sub(c.troubled) >= deposed
}

// asks reports whether a lane may have the leader asked: none had for a while.
func (c *contact) asks(now time.Time, pause time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.asked) < pause {
		return false
	}
	c.asked = now
	return true
}

// leads is who is known to lead.
func (c *contact) leads() leadership {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.by
}
