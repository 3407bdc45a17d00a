package access

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/toolfleet/toolfleet/internal/judge"
)

// Shares bound what each principal may use of a server.
type Shares struct {
	// Rate is how many requests it may send in a second, on average, and twice as many at once; 0
	// is not bounded.
	Rate int
	// Open is how many requests of it are answered at once, streams too; 0 is not bounded.
	Open int

	mu sync.Mutex
	of map[string]*share
}

// share is what a principal uses.
type share struct {
	limit *rate.Limiter
	open  int
}

// maxShares is how many principals are remembered that use nothing.
const maxShares = 4096

// ErrShare is wrapped by the error of a principal that uses as much as it may.
var ErrShare = errors.New("too many requests")

// take takes a request of a principal, until done. The error says when it is worth trying again.
func (s *Shares) take(who judge.Principal) (done func(), again time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil || len(s.of) > maxShares {
		kept := map[string]*share{}
		for id, used := range s.of {
			if used.open > 0 || used.limit != nil && used.limit.Tokens() < float64(used.limit.Burst()) {
				kept[id] = used
			}
		}
		s.of = kept
	}
	id := who.ID()
	used := s.of[id]
	if used == nil {
		used = &share{}
		if s.Rate > 0 {
			used.limit = rate.NewLimiter(rate.Limit(s.Rate), 2*s.Rate)
		}
		s.of[id] = used
	}
	if s.Open > 0 && used.open >= s.Open {
		return nil, time.Second, fmt.Errorf("%w: %d requests and streams of %s are open, as many as it may have: end some first", ErrShare, used.open, who)
	}
	if used.limit != nil && !used.limit.Allow() {
		return nil, time.Second, fmt.Errorf("%w: %s may send %d in a second", ErrShare, who, s.Rate)
	}
	used.open++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		used.open--
	}, 0, nil
}

// Bound refuses requests of a principal that uses as much as it may.
func (s *Shares) Bound(next http.Handler, refuse func(w http.ResponseWriter, status int, reason string)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		done, again, err := s.take(judge.Of(r.Context()))
		if err != nil {
			w.Header().Set("Retry-After", fmt.Sprint(int(again.Seconds())))
			refuse(w, http.StatusTooManyRequests, err.Error())
			return
		}
		defer done()
		next.ServeHTTP(w, r)
	})
}

// LocalHost refuses requests to a loopback address under a name that is not one of this machine: a
// web page whose name leads to the address has sent them.
func LocalHost(next http.Handler, refuse func(w http.ResponseWriter, status int, reason string)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		address, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		if tcp, is := address.(*net.TCPAddr); is && tcp.IP.IsLoopback() && !local(r.Host) {
			refuse(w, http.StatusForbidden, fmt.Sprintf("host %.100q: must be localhost or a loopback address", r.Host))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// local reports whether a host, with or without a port, is a loopback address.
func local(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return strings.EqualFold(host, "localhost") || err == nil && ip.IsLoopback()
}
