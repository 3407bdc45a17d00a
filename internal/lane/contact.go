package lane

import (
	"sync"
	"time"
)

// A leader that stood still finds, when it goes on, what the others sent it before that, and takes it for new. So it seems to be
// followed until it hears, a heartbeat later, of the leader that they have chosen meanwhile. Renewals do not count for that moment.
const (
	// silence is how long a leader that is followed may seem not to be heard: heartbeats come every second.
	silence = 3 * time.Second
	// deposed is how long a server may believe that it still leads when it does not: more than two heartbeats.
	deposed = 2500 * time.Millisecond
	// hush is how long a server may be silent before the others may have replaced it as a leader, which takes them 4 s at least.
	hush = 2 * time.Second
	// inOffice is how long a leader has to be followed without a silence until it is not expected to be replaced at any moment.
	inOffice = 10 * time.Second
)

// contact is what a holder knows of the leader of its pool's consumer, and of when the others heard it. It is safe for
// concurrent use.
type contact struct {
	mu       sync.Mutex
	majority word      // that a majority heard the leader
	last     time.Time // when that was; zero while it is not known
	begun    time.Time // when this leader was met first
	spoke    time.Time // when a silence was over; zero while there was none
	// suspect was leading before the silence and is again, or still takes itself for the leader.
	suspect  leadership
	everyone word      // of all servers
	troubled time.Time // when one of them was silent, or another one led
	asked    time.Time // when a lane had the leader asked last
}

// word is the last that was said of something.
type word struct {
	by leadership
	at time.Time
}

// next books what by says at now. It reports whether by said it before, too, and how long ago that was said at all.
func (w *word) next(by leadership, now time.Time) (same bool, pause time.Duration) {
	same, pause = by == w.by, now.Sub(w.at)
	w.by, w.at = by, now
	return same, pause
}

// heard books what by said at now: that a majority heard it at a time. It reports false when that may not be
// so, because by was silent until a moment ago, for so long that another may have been chosen.
func (c *contact) heard(by leadership, at, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	same, pause := c.majority.next(by, now)
	if !c.last.IsZero() && (at.Sub(c.last) > silence || pause > silence) {
		c.spoke, c.suspect = now, ""
		if same {
			c.suspect = by
		}
	}
	if !same {
		c.begun = now
	}
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
	same, pause := c.everyone.next(leader, now)
	if leader == "" || !same || silent > hush || pause > hush {
		c.troubled = now
	}
}

// calm reports whether no server can take itself for the leader of anything that the others have another leader for: none
// was silent for so long, and any that had been would know by now.
func (c *contact) calm(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return now.Sub(c.everyone.at) <= hush && now.Sub(c.troubled) >= deposed
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
	return c.majority.by
}
