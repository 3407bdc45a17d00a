//go:build linux

package ns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"slices"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/cgroup"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/initd"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/supervisor"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

var _ sandbox.Sandbox = (*Sandbox)(nil)

// Sandbox is a set of namespaces and its first process, which is started again when it
// was lost.
type Sandbox struct {
	spec      isolation.Spec
	config    initd.Config
	protected *protected   // nil when nothing is protected; used during a start, and while the gate is locked and idle
	groups    *cgroup.Tree // nil without control groups
	scratch   *supervisor.Scratch
	log       *slog.Logger
	gate      *supervisor.Gate

	current *instance // that operations go to; read and set while the gate is locked
}

// start starts the first process. Nothing else is done with the sandbox meanwhile.
func (s *Sandbox) start(ctx context.Context) error {
	var err error
	if s.protected == nil {
		s.protected, err = newProtected(s.config.Workspace, &s.spec)
	} else {
		err = s.protected.update()
	}
	if err != nil {
		return err
	}
	if s.protected != nil {
		s.config.Protected, s.config.Pinned = s.protected.identities(s.protected.paths), s.protected.identities(s.protected.pinned)
		s.linkCopies()
	}
	if err := s.linkMounts(); err != nil {
		return err
	}
	fresh, err := open(ctx, s.config, s.groups, s.spec.Limits)
	if err != nil {
		return explain(err)
	}
	fresh.sendLease(s.spec.LeaseEnd)
	fresh.network.serve(ctx, s.spec.Network)
	s.setCurrent(fresh)
	return nil
}

// linkCopies has symbolic links stand for the protected files that the sandbox has copies of.
func (s *Sandbox) linkCopies() {
	for i, place := range s.config.Protected {
		if slices.Contains(s.spec.Copies, place.Path) && s.protected.found[place.Path].Mode().IsRegular() {
			s.config.Protected[i].Link = path.Join(initd.GuestHome, isolation.CopyInHome(place.Path))
		}
	}
}

// linkMounts makes the links in /tmp that lead to mounts. Commands of an earlier start may have put
// something else there.
func (s *Sandbox) linkMounts() error {
	for _, name := range initd.TempLinks(s.config.Mounts) {
		if err := s.scratch.LinkTemp(name, path.Join(initd.HostTemp, name)); err != nil {
			return err
		}
	}
	return nil
}

// setCurrent has operations go to i.
func (s *Sandbox) setCurrent(i *instance) {
	s.gate.Locked(func(bool, bool) { s.current = i })
}

// FS implements [sandbox.Sandbox]. The operations are done inside of the sandbox.
func (s *Sandbox) FS() sandbox.FS { return initd.RemoteFS(s.files) }

func (s *Sandbox) files(ctx context.Context, request *initd.FileRequest) (*initd.FileReply, error) {
	var i *instance
	if _, err := s.gate.Enter(ctx, s.ready(&i)); err != nil {
		return nil, err
	}
	defer s.gate.Leave()
	r, err := i.ask(ctx, func(id uint64) error { return i.conn.Send(id, initd.KindFiles, *request) })
	if err != nil {
		return nil, fmt.Errorf("file operation in sandbox %s: %w", s.spec.ID, s.afterClose(err))
	}
	return &r.files, nil
}

// afterClose is err, or that the sandbox was closed if it was.
func (s *Sandbox) afterClose(err error) error {
	s.gate.Locked(func(closed, _ bool) {
		if closed {
			err = sandbox.ErrClosed
		}
	})
	return err
}

// ready is how the gate finds the first process for an operation, i, and starts the sandbox again
// when it was lost or is outdated.
func (s *Sandbox) ready(i **instance) supervisor.Start {
	serves := func(idle bool) bool {
		*i = s.current
		return *i != nil && !(*i).lost() && !s.outdated(idle)
	}
	return supervisor.Start{Serves: serves, Restart: s.restart}
}

// outdated reports whether something that is protected was replaced from outside, and no operation
// runs that a restart of the sandbox would kill.
func (s *Sandbox) outdated(idle bool) bool { return idle && s.protected.stale() }

// restart starts the sandbox again if it was lost, or is outdated.
func (s *Sandbox) restart(ctx context.Context) error {
	old, why := s.removeCurrent()
	if why == "" {
		return nil // the gate asks again
	}
	if old != nil {
		if err := old.close(); err != nil {
			s.setCurrent(old) // its leftovers are not forgotten
			return fmt.Errorf("%w: %w", isolation.ErrLeftover, err)
		}
	}
	if err := s.start(ctx); err != nil {
		return err
	}
	s.log.WarnContext(ctx, "sandbox is started again", slog.String("sandbox", s.spec.ID), slog.String("reason", why))
	return nil
}

// removeCurrent takes the first process out of use if the sandbox has to be started again, and
// returns the reason; "" is none.
func (s *Sandbox) removeCurrent() (old *instance, why string) {
	s.gate.Locked(func(closed, idle bool) {
		switch {
		case closed:
			return
		case s.current == nil || s.current.lost():
			why = "it was lost"
		case s.outdated(idle):
			why = "what is protected was replaced"
		default:
			return
		}
		old, s.current = s.current, nil
	})
	return old, why
}

// Reset implements [sandbox.Sandbox]. It restarts the sandbox, and with it all that is in memory,
// such as /dev/shm.
func (s *Sandbox) Reset(ctx context.Context) error {
	return s.gate.Reset(ctx, func() error {
		if s.current != nil {
			if err := s.current.close(); err != nil {
				return fmt.Errorf("%w: %w", isolation.ErrLeftover, err)
			}
		}
		return errors.Join(s.scratch.Empty(), s.start(ctx))
	})
}

// Close implements [sandbox.Sandbox].
func (s *Sandbox) Close() error {
	return s.gate.Close(func() error {
		var err error
		if s.current != nil {
			err = s.current.close()
		}
		s.gate.Wait()
		return errors.Join(err, s.protected.close(), s.scratch.Close())
	})
}
