// Package index keeps the words of conversations and the log of calls in one file, so that they can
// be searched across sessions. The file is a projection of the journals and of the stored results:
// nothing is written to it that they do not have, and a file that is lost, damaged or of another
// version is made again. Results leave their stream after some days; the file keeps their calls.
//
//	TF_SESSIONS ─┬─► Update ──► one transaction for some messages ──► Search: words, ranked
//	 journals    │   reads       rows, and the position behind         Calls: the log, in pages
//	TF_RESULTS ──┘   behind      which the next one reads              the caller judges
//	 results         positions                                         each owner
//	                             triggers ──► sums of each minute ──► Rates
//
// The streams are authoritative. The position is stored with the rows of its messages, so a process
// that is killed loses no message and applies none twice, and several processes may use one file.
// A message that left the stream takes its rows along: sessions are removed by messages of their
// journals, and what has disappeared without one is found because the number of messages in the
// stream is not the number in the file. Removed text is overwritten, also in the log of writes and
// in the index of words.
package index

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gofrs/flock"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"modernc.org/sqlite"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// File is the name of the file in its directory.
const File = "journals.db"

// version is that of the schema. A file of another one is made again.
const version = 7

// schema has one row of entry for each text, and one of call for each call. Texts are in entry
// alone: word has the positions of their words.
const schema = `
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE session(
  id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE,
  tenant TEXT NOT NULL DEFAULT '', owner TEXT NOT NULL DEFAULT '', owned INTEGER NOT NULL DEFAULT 0,
  copies TEXT NOT NULL DEFAULT '', removed INTEGER NOT NULL DEFAULT 0, request INTEGER NOT NULL DEFAULT 0, model_ms REAL,
  ask_step INTEGER NOT NULL DEFAULT 0, ask_ms INTEGER NOT NULL DEFAULT 0, asking INTEGER NOT NULL DEFAULT 0, last INTEGER NOT NULL DEFAULT 0, messages INTEGER NOT NULL DEFAULT 0);
CREATE TABLE entry(
  id INTEGER PRIMARY KEY, session INTEGER NOT NULL, at INTEGER NOT NULL, turn INTEGER NOT NULL, step INTEGER NOT NULL,
  role TEXT NOT NULL, tool TEXT NOT NULL, call TEXT NOT NULL, body TEXT NOT NULL);
CREATE INDEX entry_session ON entry(session);
CREATE INDEX entry_at ON entry(at);
CREATE TABLE call(
  id INTEGER PRIMARY KEY, session INTEGER NOT NULL, call TEXT NOT NULL,
  turn INTEGER NOT NULL DEFAULT 0, step INTEGER NOT NULL DEFAULT 0, idx INTEGER NOT NULL DEFAULT 0, tool TEXT NOT NULL DEFAULT '',
  pool TEXT NOT NULL DEFAULT '', lane TEXT NOT NULL DEFAULT '', resources TEXT NOT NULL DEFAULT '', tenant TEXT NOT NULL DEFAULT '', owner TEXT NOT NULL DEFAULT '',
  accepted INTEGER NOT NULL DEFAULT 0, started INTEGER, finished INTEGER, stored INTEGER NOT NULL DEFAULT 0,
  status TEXT NOT NULL DEFAULT '', exit TEXT NOT NULL DEFAULT '', code TEXT NOT NULL DEFAULT '', error TEXT NOT NULL DEFAULT '',
  worker TEXT NOT NULL DEFAULT '', attempt INTEGER NOT NULL DEFAULT 0, level TEXT NOT NULL DEFAULT '', checkpoint INTEGER NOT NULL DEFAULT 0,
  run_ms REAL, queue_ms REAL, not_before_ms REAL, slot_ms REAL, lane_ms REAL, after_ms REAL, limit_ms REAL, rate_ms REAL, pause_ms REAL, lost_ms REAL, model_ms REAL, person_ms REAL,
  sandbox_ms REAL, store_ms REAL, held_by TEXT NOT NULL DEFAULT '', held_by_session TEXT NOT NULL DEFAULT '', after_call TEXT NOT NULL DEFAULT '', after_session TEXT NOT NULL DEFAULT '', limited TEXT NOT NULL DEFAULT '', lost_worker TEXT NOT NULL DEFAULT '',
  asked INTEGER, input INTEGER NOT NULL DEFAULT 0, output INTEGER NOT NULL DEFAULT 0, taken INTEGER, UNIQUE(call, session));
CREATE INDEX call_taken ON call(taken);
CREATE INDEX call_finished ON call(finished);
CREATE INDEX call_session ON call(session, finished, status, exit);
CREATE INDEX call_tool ON call(tool, finished, status, exit);
CREATE INDEX call_lane ON call(lane, finished, status, exit);
CREATE INDEX call_tenant ON call(tenant, finished, status, exit);
CREATE INDEX call_worker ON call(worker, finished, status, exit);
CREATE INDEX call_failed ON call(finished, status, exit) WHERE status <> 'ok' OR exit <> '';
CREATE VIRTUAL TABLE word USING fts5(text, content='', tokenize="unicode61 remove_diacritics 0 categories 'L* N* M* Co'");
INSERT INTO word(word, rank) VALUES('secure-delete', 1);
`

// Options of an [Index]; zero values mean what the last process has named that did name something,
// and else the documented default.
type Options struct {
	// MaxBytes bounds the file: the oldest texts and calls leave it first. 0 means 2 GiB.
	MaxBytes int64
	// MaxAge bounds how long the file has texts and calls; 0 means for ever.
	MaxAge time.Duration
	// Parts are the servers that have results of the fleet besides the one that has its journals,
	// by the name of a pool.
	Parts map[string]jetstream.JetStream
	// Secret returns the secret of the fleet, by which results prove whose calls they are of. It is
	// nil for a user who may not read it, and for one without.
	Secret func(ctx context.Context) ([]byte, error)
}

// defaultMaxBytes is some five million texts of calls.
const defaultMaxBytes = 2 << 30

// Index is a file with the words of a fleet's journals. It is safe for concurrent use, also by
// several processes.
type Index struct {
	fleet   protocol.Fleet
	nc      *nats.Conn
	stream  jetstream.Stream
	results []source
	dir     string
	options Options

	turn chan struct{}          // holds one value while the file is updated or made again
	open atomic.Pointer[opened] // replaced by the one who has the turn

	current atomic.Pointer[time.Time] // when the file was up to date; nil before the first update
	secret  []byte                    // used by the one who has the turn; nil until it is read
}

// opened is the file, as this process has it.
type opened struct {
	write, read *sql.DB
	file        os.FileInfo
	seal        seal
}

func (o *opened) close() error { return errors.Join(o.read.Close(), o.write.Close()) }

// Open opens the file in a directory, which it makes, for the journals of a fleet. A file that
// cannot be used is made again.
func Open(ctx context.Context, js jetstream.JetStream, fleet protocol.Fleet, dir string, options Options) (*Index, error) {
	stream, err := js.Stream(ctx, wire.SessionsStream(fleet))
	if err != nil {
		return nil, fmt.Errorf("open stream %s: %w", wire.SessionsStream(fleet), err)
	}
	x := &Index{fleet: fleet, nc: js.Conn(), stream: stream, dir: dir, options: options, turn: make(chan struct{}, 1)}
	parts := map[string]jetstream.JetStream{"": js}
	maps.Copy(parts, options.Parts)
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		results, err := parts[name].Stream(ctx, wire.ResultsStream(fleet))
		if err != nil {
			return nil, fmt.Errorf("open stream %s: %w", wire.ResultsStream(fleet), err)
		}
		x.results = append(x.results, source{stream: results, subject: wire.ResultSubject(fleet, "*", "*"), prefix: "results " + name + " ", proof: x.proof})
	}
	if err := x.reopen(ctx, nil); err != nil {
		return nil, err
	}
	return x, nil
}

// Close closes the file, which stays. Nothing may use the index any more.
func (x *Index) Close() error { return x.open.Load().close() }

// path is the file.
func (x *Index) path() string { return filepath.Join(x.dir, File) }

// reopen opens the file, and makes it first if there is none, or if the one that is there is of
// another version, damaged, or the damaged one that this process had.
func (x *Index) reopen(ctx context.Context, damaged *opened) error {
	if err := os.MkdirAll(x.dir, 0o700); err != nil {
		return fmt.Errorf("index of sessions: %w", err)
	}
	lock := flock.New(filepath.Join(x.dir, File+".lock"))
	if _, err := lock.TryLockContext(ctx, lockPause); err != nil {
		return fmt.Errorf("index of sessions: lock %s: %w", lock.Path(), err)
	}
	defer func() { _ = lock.Unlock() }()
	if damaged != nil {
		_ = damaged.close() // what it has is of no use
		if there, err := os.Stat(x.path()); err == nil && os.SameFile(there, damaged.file) {
			x.remove()
		}
	}
	if info, err := os.Stat(x.path()); err == nil && info.Size() == 0 { // a file that is made here has its tables when it is unlocked
		x.remove()
	}
	o, err := x.openFile(ctx)
	if isDamaged(err) {
		x.remove()
		o, err = x.openFile(ctx)
	}
	if err != nil {
		return fmt.Errorf("index of sessions: %s: %w", x.path(), err)
	}
	x.open.Store(o)
	return nil
}

// lockPause is how often a lock is tried that another process has.
const lockPause = 20 * time.Millisecond

// remove removes the file, and what belongs to it. Other processes that have it open find out.
func (x *Index) remove() {
	for _, suffix := range []string{"", "-wal", "-shm"} {
		_ = os.Remove(x.path() + suffix) // else it is found damaged again
	}
}

// errVersion means that the file is of another version.
var errVersion = errors.New("the file is of another version")

// isDamaged reports whether an error says that the file is of no use.
func isDamaged(err error) bool {
	const corrupt, notADatabase = 11, 26
	if failed, is := errors.AsType[*sqlite.Error](err); is {
		code := failed.Code() & 0xff
		return code == corrupt || code == notADatabase
	}
	return errors.Is(err, errVersion)
}

// pragmas are settings of each connection. A write waits for that of another process. Pages that
// are freed are overwritten.
const pragmas = "?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=secure_delete(1)&_pragma=temp_store(2)"

// readers is how many searches run at once.
const readers = 4

// openFile opens the file, and makes its tables if it has none.
func (x *Index) openFile(ctx context.Context) (_ *opened, err error) {
	made, err := os.OpenFile(x.path(), os.O_RDWR|os.O_CREATE, 0o600) // the files next to it get its mode
	if err != nil {
		return nil, err
	}
	o := &opened{}
	o.file, err = made.Stat()
	if err = errors.Join(err, made.Close()); err != nil {
		return nil, err
	}
	name := "file:" + filepath.ToSlash(x.path()) + pragmas
	if o.write, err = sql.Open("sqlite", name+"&_txlock=immediate"); err != nil {
		return nil, err
	}
	if o.read, err = sql.Open("sqlite", name+"&_pragma=query_only(1)"); err != nil {
		return nil, errors.Join(err, o.write.Close())
	}
	o.write.SetMaxOpenConns(1)
	o.read.SetMaxOpenConns(readers)
	err = within(ctx, o.write, func(tx *sql.Tx) error {
		var found int
		err := tx.QueryRowContext(ctx, "PRAGMA user_version").Scan(&found)
		switch {
		case err != nil:
			return err
		case found == 0:
			_, err = tx.ExecContext(ctx, schema+ratesSchema+triggers()+fmt.Sprintf("PRAGMA user_version = %d;", version))
			err = errors.Join(err, setMeta(ctx, tx, keyFile, newFile()))
		case found != version:
			err = fmt.Errorf("%w: %d, and not %d", errVersion, found, version)
		}
		if err == nil {
			o.seal, err = readSeal(ctx, tx)
		}
		return err
	})
	if err == nil && o.file.Size() == 0 {
		_, err = o.write.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)")
	}
	if err != nil {
		return nil, errors.Join(err, o.close())
	}
	return o, nil
}

// within runs a function in a transaction, which is stored if it returns no error.
func within(ctx context.Context, db *sql.DB, do func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := do(tx); err != nil {
		_ = tx.Rollback() // the first error counts
		return err
	}
	return tx.Commit()
}

// take waits for the turn to change the file.
func (x *Index) take(ctx context.Context) error {
	select {
	case x.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// change runs a function that changes the file. It has the file made again if it is damaged, or if
// another process has done so, and then runs the function once more.
func (x *Index) change(ctx context.Context, do func(o *opened) error) error {
	if err := x.take(ctx); err != nil {
		return err
	}
	defer func() { <-x.turn }()
	o := x.open.Load()
	there, err := os.Stat(x.path())
	if err == nil && os.SameFile(there, o.file) {
		if err = do(o); !isDamaged(err) {
			return err
		}
	}
	if err := x.reopen(ctx, o); err != nil {
		return err
	}
	return do(x.open.Load())
}
