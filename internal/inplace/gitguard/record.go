package gitguard

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/uuid"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/system/regular"
)

// A process can end between a command and the setting aside of what that has left for git. So each
// [Aside] has a record on disk of what was there before:
//
//	before the first command   record stored, its file locked
//	process is killed          the kernel releases the lock
//	next look at the directory whoever gets the lock completes the setting aside, and removes the record
//	clean end                  the process removes its record, unless something could not be set aside
//
// Records are in the user's state folder, where no sandbox sees them.
const (
	recordsFolder = "git"
	recordEnding  = ".json"
	// recordsLock is the file of the folder that is locked while a record appears.
	recordsLock = "lock"
	// killedGrace is how long the sandboxes of a killed process may take to end.
	killedGrace = time.Second
	// maxRecord bounds the file of a record, in bytes.
	maxRecord = 256 << 20
	// recordAge is the age from which on the record of a directory that is gone is removed.
	recordAge = 30 * 24 * time.Hour
)

// record is what a directory had before the first command of a process.
type record struct {
	// Directory is its path without symbolic links, and ID the directory itself.
	Directory string   `json:"directory"`
	ID        identity `json:"id"`
	// Born tells it from another directory that got its number after it was removed; 0 is unknown.
	Born int64 `json:"born,omitempty"`
	// Keep means that nothing is set aside.
	Keep bool `json:"keep,omitempty"`
	// Before are the directories of git's that were there.
	Before []identity `json:"before,omitempty"`
	// Runs is what git would have run, and what it had of it; nil if nothing was looked for.
	Runs []recordedRun `json:"runs"`
}

// recordedRun is an entry of [Watch].before.
type recordedRun struct {
	Finding

	Content []byte `json:"content,omitempty"`
}

// held is a record on disk whose lock this process has.
type held struct {
	path string
	lock *flock.Flock
}

// lockRecords returns the folder of records, locked.
func lockRecords(ctx context.Context) (folder string, unlock func(), err error) {
	folder, err = cli.StateDir(recordsFolder)
	if err == nil {
		err = os.MkdirAll(folder, 0o700)
	}
	if err != nil {
		return "", nil, fmt.Errorf("what git runs cannot be recorded: %w; set XDG_STATE_HOME to a directory that can be written to", err)
	}
	ctx, cancel := context.WithTimeout(ctx, askTime) // a stopped process may have the lock
	defer cancel()
	lock := flock.New(filepath.Join(folder, recordsLock), flock.SetPermissions(0o600))
	if _, err := lock.TryLockContext(ctx, time.Millisecond); err != nil {
		return "", nil, fmt.Errorf("lock %s: %w", folder, err)
	}
	return folder, func() { _ = lock.Close() }, nil // its file stays
}

// store writes a record, so that it is on disk as a whole, and locks it.
func (r *record) store(ctx context.Context) (h *held, err error) {
	content, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	folder, unlock, err := lockRecords(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	h = &held{path: filepath.Join(folder, uuid.NewString()+recordEnding)}
	if err := regular.ReplaceSynced(h.path, content); err != nil {
		return nil, err
	}
	h.lock = flock.New(h.path, flock.SetFlag(os.O_RDWR))
	if got, err := h.lock.TryLock(); err != nil || !got {
		return nil, errors.Join(fmt.Errorf("%s: cannot be locked", h.path), err, h.remove())
	}
	return h, nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); !missing(err) {
		return err
	}
	return nil
}

// remove removes a record: before it is unlocked, or after that where a locked file stays.
func (h *held) remove() error {
	_ = os.Remove(h.path)
	return errors.Join(h.lock.Close(), removeIfThere(h.path))
}

// leave has the next process complete what a record is about.
func (h *held) leave() error { return h.lock.Close() }

// abandoned are the records about a directory, directories in it and around it, whose processes
// have ended without removing them, and those that are not needed any more. The caller has their
// locks. To others they look like those of a living process, so it has no further ones.
func abandoned(ctx context.Context, dir string) (all []*held, err error) {
	folder, unlock, err := lockRecords(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	entries, err := os.ReadDir(folder)
	for _, entry := range entries {
		path := filepath.Join(folder, entry.Name())
		switch filepath.Ext(path) {
		case ".new": // its process was killed before its first command
			err = cmp.Or(err, removeIfThere(path))
		case recordEnding:
			lock := flock.New(path, flock.SetFlag(os.O_RDWR))
			got, lockErr := lock.TryLock()
			switch {
			case missing(lockErr): // removed meanwhile
			case lockErr != nil:
				err = cmp.Or(err, lockErr)
			case got && exists(path):
				if h := (&held{path, lock}); h.concerns(dir) {
					all = append(all, h)
					continue
				}
			}
			_ = lock.Close()
		}
	}
	return all, err
}

// concerns reports whether there is something to do about a record for those who use a directory,
// or an error to report.
func (h *held) concerns(dir string) bool {
	r, err := h.read()
	if err != nil {
		return true
	}
	at, err := r.at(dir)
	return err != nil || at != "" || r.gone(h.path)
}

// read reads the record of a file.
func (h *held) read() (r record, err error) {
	content, err := regular.Read(h.path, maxRecord)
	if err == nil {
		err = json.Unmarshal(content, &r)
	}
	return r, err
}

// at is where the directory of a record is, if it is dir, in it or around it; "" if it is not.
func (r *record) at(dir string) (string, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return "", err
	}
	there := r.there()
	switch {
	case there != nil && (around(dir, there) || around(r.Directory, info)):
		return r.Directory, nil
	case there == nil && identityOf(info, dir) == r.ID && (r.Born == 0 || r.Born == bornAt(dir)): // moved
		return dir, nil
	}
	return "", nil
}

// there is the directory of a record; nil if it is not where it was. The number of its device may
// be another one, as after a restart of the machine.
func (r *record) there() fs.FileInfo {
	info, err := os.Stat(r.Directory)
	if err != nil {
		return nil
	}
	id := identityOf(info, r.Directory)
	if id.Dev = r.ID.Dev; id != r.ID {
		return nil
	}
	return info
}

// around reports whether a directory is another one, or below it.
func around(dir string, other fs.FileInfo) bool {
	for at := dir; ; at = filepath.Dir(at) {
		if info, err := os.Stat(at); err == nil && os.SameFile(info, other) {
			return true
		}
		if at == filepath.Dir(at) {
			return false
		}
	}
}

// completed is what was completed for processes that had been killed, or could not set something
// aside.
type completed struct {
	moved    []string  // was set aside
	findings []Finding // what git runs that it did not run before those processes
}

// isLeft reports whether a finding is something that was not set aside.
func (f Finding) isLeft() bool { return filepath.Ext(f.Path) != asideSuffix }

// complete completes what processes that have ended did not set aside in a directory, in
// directories in it and around it. A record stays while it has findings that the caller does not
// show.
func complete(ctx context.Context, dir string, shows bool) (all completed, err error) {
	dir, err = filepath.EvalSymlinks(dir)
	if err != nil {
		return all, err
	}
	records, err := abandoned(ctx, dir)
	waited := false
	for _, h := range records {
		r, readErr := h.read()
		at := ""
		if readErr == nil {
			at, readErr = r.at(dir)
		}
		if readErr == nil && at != "" {
			if !waited && !pause.For(ctx, killedGrace) {
				readErr = ctx.Err()
			}
			waited = true
		}
		done := completed{}
		if readErr == nil && at != "" {
			done, readErr = r.complete(ctx, at)
		}
		all.add(dir, at, &done)
		switch {
		case readErr != nil:
			readErr = fmt.Errorf("complete the setting aside of a process that has ended (%s): %w; if you have looked at what git runs there, remove this record", h.path, readErr)
			err = errors.Join(err, readErr, h.leave())
		case at != "" && (shows || !slices.ContainsFunc(done.findings, Finding.isLeft)), r.gone(h.path):
			err = errors.Join(err, h.remove())
		default:
			err = errors.Join(err, h.leave())
		}
	}
	return all, err
}

// gone reports whether the directory of an old record is not there any more.
func (r *record) gone(path string) bool {
	info, err := os.Stat(path)
	return err == nil && time.Since(info.ModTime()) > recordAge && r.there() == nil
}

// complete sets aside what is new in the directory of a record.
func (r *record) complete(ctx context.Context, dir string) (c completed, err error) {
	git, err := newReader(dir)
	if err != nil {
		return c, nil //nolint:nilerr // without git nothing runs
	}
	info, err := os.Stat(dir)
	if err != nil {
		return c, err
	}
	a := &Aside{dir: dir, git: git, keep: r.Keep}
	for _, id := range r.Before {
		if id.Dev == r.ID.Dev {
			id.Dev = identityOf(info, dir).Dev
		}
		a.before = append(a.before, id)
	}
	if c.moved, err = a.move(ctx); err != nil || r.Runs == nil {
		return c, err
	}
	w := &Watch{dir: dir, git: git, before: map[Finding]string{}}
	for _, run := range r.Runs {
		w.before[run.Finding] = string(run.Content)
	}
	c.findings, err = w.Findings(ctx)
	return c, err
}

// add adds what was completed in a directory, with paths as reports about dir have them.
func (c *completed) add(dir, at string, more *completed) {
	name := func(path string) string {
		if at == dir || filepath.IsAbs(path) {
			return path
		}
		return (&found{dir: dir}).name(filepath.Join(at, path))
	}
	for _, moved := range more.moved {
		c.moved = append(c.moved, name(moved))
	}
	for _, finding := range more.findings {
		c.findings = append(c.findings, Finding{Path: name(finding.Path), What: finding.What})
	}
}
