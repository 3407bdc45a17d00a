// Package backup stores what a directory contained at turns of a session that uses it in place:
// [States] has the contents, for /undo and /diff of a conversation and for session restore, and
// [Stamps] only says which files have changed since.
package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Bounds of a state: larger ones would take longer than their turns.
const (
	maxStateBytes   = 256 << 20
	maxStateEntries = 50_000
)

// bounds are of what is stored of one session. The oldest states are removed first, the latest one
// stays.
type bounds struct {
	bytes  int64 // compressed
	states int
}

const (
	maxStored = 1 << 30
	maxStates = 200
	maxAge    = 30 * 24 * time.Hour
)

// Moment says when a state was stored.
type Moment string

// The moments: before a turn, when another process continues it, at its end, and after a restore
// behind it.
const (
	Before   Moment = "before"
	Resumed  Moment = "resumed"
	End      Moment = "end"
	Restored Moment = "restored"
)

// State is what a directory contained at a moment of a turn.
type State struct {
	Turn   int             `json:"turn"`
	Moment Moment          `json:"moment"`
	Time   time.Time       `json:"time"`
	Tree   []snapshot.Part `json:"tree"`

	err error // why there is none
}

// States are the stored states of a directory, without git's own files. They are in a folder of
// this machine, which one process uses at a time: the list of states, and their contents, each
// once. A content is stored before the list names it, and removed when the list names it no more.
type States struct {
	dir, folder string
	contents    snapshot.Directory
	list        []State         // the oldest first
	latest      snapshot.Tree   // what the directory had last, whose contents are stored
	parts       []snapshot.Part // where that is stored itself; nil if no state has it
	index       snapshot.Index
	bounds      bounds
	refused     error // why nothing is stored
}

// listed is the content of the list of states.
type listed struct {
	Directory string  `json:"directory"`
	States    []State `json:"states"`
}

// Folder returns where the states of a session are in its data directory.
func Folder(data string, session protocol.SessionID) string {
	return filepath.Join(data, "states", string(session))
}

// Open returns the states of a directory that are stored in a folder.
func Open(dir, folder string) *States {
	s := &States{dir: dir, folder: folder, contents: snapshot.Directory(filepath.Join(folder, "contents")), bounds: bounds{maxStored, maxStates}}
	s.forget()
	var found listed
	content, err := os.ReadFile(s.file())
	if err == nil {
		err = json.Unmarshal(content, &found)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		s.refused = fmt.Errorf("the stored states of the directory cannot be read: %w; remove %s to begin again", err, folder)
	case found.Directory == dir:
		s.list = found.States
	}
	return s
}

// Refused are no states, for a reason.
func Refused(reason string) *States { return &States{refused: errors.New(reason)} }

func (s *States) file() string { return filepath.Join(s.folder, "states.json") }

// forget makes the next Save store everything.
func (s *States) forget() { s.latest, s.parts, s.index = snapshot.Tree{}, nil, snapshot.Index{} }

func isGit(path string, _ bool) bool { return path == ".git" }

// Save stores what the directory contains at a moment of a turn. What goes wrong is reported when
// the state is used.
func (s *States) Save(ctx context.Context, turn int, moment Moment) State {
	state := State{Turn: turn, Moment: moment, Time: time.Now()}
	if state.err = s.refused; state.err != nil {
		return state
	}
	if err := s.save(ctx, &state); err != nil {
		state.err = fmt.Errorf("not possible, the workspace could not be copied: %w", err)
	}
	return state
}

func (s *States) save(ctx context.Context, state *State) error {
	if err := os.MkdirAll(string(s.contents), 0o700); err != nil {
		return err
	}
	if _, err := os.Stat(s.file()); errors.Is(err, fs.ErrNotExist) { // another process has swept them
		s.list = nil
		s.forget()
	}
	if len(s.list) > 0 && len(s.latest) == 0 { // of an earlier process
		last := s.list[len(s.list)-1]
		if tree, err := s.tree(ctx, last); err == nil { // else everything is stored again
			s.latest, s.parts = tree, last.Tree
		}
	}
	tree, err := s.now(ctx)
	if err != nil {
		return err
	}
	if s.parts == nil {
		encoded, err := json.Marshal(tree)
		if err == nil {
			s.parts, _, err = snapshot.StoreBytes(ctx, s.contents, encoded)
		}
		if err != nil {
			s.forget()
			return err
		}
	}
	state.Tree = s.parts
	s.list = append(s.list, *state)
	return errors.Join(s.store(), s.trim(ctx))
}

// now returns what the directory contains, and stores its contents.
func (s *States) now(ctx context.Context) (_ snapshot.Tree, err error) {
	root, err := os.OpenRoot(s.dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	delta, err := snapshot.Save(ctx, root, s.latest, s.index, s.contents, &snapshot.Options{
		Limits: snapshot.Limits{MaxBytes: maxStateBytes, MaxEntries: maxStateEntries}, Skip: isGit,
	})
	if err == nil {
		err = delta.Outline(ctx, s.contents)
	}
	if err != nil {
		s.forget()
		return nil, err
	}
	tree := s.latest.With(delta)
	if !maps.EqualFunc(s.latest, tree, snapshot.Node.Same) {
		s.parts = nil
	}
	s.latest = tree
	return tree, nil
}

// store writes the list of states.
func (s *States) store() error {
	encoded, err := json.Marshal(listed{s.dir, s.list})
	if err != nil {
		return err
	}
	return regular.Replace(s.file(), encoded)
}

// trim removes the oldest states beyond the bounds, and contents that no state needs.
func (s *States) trim(ctx context.Context) error {
	sizes, total, err := s.sizes()
	if err != nil {
		return err
	}
	first, last := max(len(s.list)-s.bounds.states, 0), len(s.list)-1
	for first < last && time.Since(s.list[first].Time) > maxAge {
		first++
	}
	if first == 0 && total <= s.bounds.bytes {
		return nil
	}
	needed, used := map[string]bool{}, int64(0)
	for i := last; i >= first; i-- {
		tree, err := s.tree(ctx, s.list[i])
		added := tree.Bodies()
		for _, part := range s.list[i].Tree {
			added = append(added, part.Body)
		}
		added = slices.DeleteFunc(added, func(name string) bool { return needed[name] })
		size := int64(0)
		for _, name := range added {
			size += sizes[name]
		}
		if i < last && (err != nil || used+size > s.bounds.bytes) {
			first = i + 1
			break
		}
		used += size
		for _, name := range added {
			needed[name] = true
		}
	}
	s.list = slices.Clone(s.list[first:])
	if err := s.store(); err != nil {
		return err
	}
	for name := range sizes {
		if !needed[name] {
			err = errors.Join(err, os.Remove(filepath.Join(string(s.contents), name)))
		}
	}
	return err
}

// sizes are the sizes of all stored contents.
func (s *States) sizes() (sizes map[string]int64, total int64, err error) {
	entries, err := os.ReadDir(string(s.contents))
	sizes = map[string]int64{}
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil {
			sizes[entry.Name()] = info.Size()
			total += info.Size()
		}
	}
	return sizes, total, err
}

// Sweep removes the states of sessions below a directory that have stored none for long. Errors do
// not matter: the next sweep tries again.
func Sweep(sessions string) {
	lists, _ := filepath.Glob(filepath.Join(sessions, "*", "states", "*", "states.json"))
	for _, list := range lists {
		if info, err := os.Stat(list); err == nil && time.Since(info.ModTime()) > maxAge {
			_ = os.Remove(list)
			_ = os.RemoveAll(filepath.Dir(list))
		}
	}
}

// Turns are the turns whose ends are stored; 0 is the beginning of the session.
func (s *States) Turns() []int {
	found := map[int]bool{}
	for _, state := range s.list {
		switch state.Moment {
		case End:
			found[state.Turn] = true
		case Before:
			found[state.Turn-1] = true
		case Restored, Resumed:
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// Reach names the turns whose ends are stored, such as: turns 2 to 5 and 7; "" is none.
func (s *States) Reach() string { return TurnsText(s.Turns()) }

// TurnsText names turns, such as: turns 2 to 5 and 7.
func TurnsText(turns []int) string {
	var ranges []string
	for i := 0; i < len(turns); i++ {
		first := i
		for i+1 < len(turns) && turns[i+1] == turns[i]+1 {
			i++
		}
		text := strconv.Itoa(turns[first])
		if i > first {
			text += " to " + strconv.Itoa(turns[i])
		}
		ranges = append(ranges, text)
	}
	switch last := len(ranges) - 1; {
	case len(turns) == 0:
		return ""
	case len(turns) == 1:
		return "turn " + ranges[0]
	case last == 0:
		return "turns " + ranges[0]
	default:
		return "turns " + strings.Join(ranges[:last], ", ") + " and " + ranges[last]
	}
}

// At returns the state at the end of a turn; 0 is the beginning of the session. Before a turn the
// directory is as at the end of the one before it, unless someone changed it in between.
func (s *States) At(turn int) (State, error) {
	if state, ok := s.find(turn, End); ok {
		return state, nil
	}
	if state, ok := s.find(turn+1, Before); ok {
		return state, nil
	}
	return State{}, s.None(fmt.Sprintf("the end of turn %d is not stored", turn))
}

// Before returns the state before a turn.
func (s *States) Before(turn int) (State, error) {
	if state, ok := s.find(turn, Before); ok {
		return state, nil
	}
	return s.At(turn - 1)
}

// Resume returns the state before a turn that this process continues: the one that the lost process
// stored. If it stored none, what the directory contains now is stored, and taken for that state in
// this process alone.
func (s *States) Resume(ctx context.Context, turn int) State {
	if state, ok := s.find(turn, Before); ok {
		return state
	}
	return s.Save(ctx, turn, Resumed)
}

// Last returns the state that was stored last.
func (s *States) Last() (State, error) {
	if len(s.list) == 0 {
		return State{}, s.None("no state of it is stored")
	}
	return s.list[len(s.list)-1], nil
}

// First returns the state that was stored first.
func (s *States) First() (State, error) {
	if len(s.list) == 0 {
		return State{}, s.None("no state of it is stored")
	}
	return s.list[0], nil
}

// Left returns how the session has left the directory: the state at the end of its last turn, or
// after a later restore. ok is false if that is not stored.
func (s *States) Left(last int) (state State, ok bool) {
	if state, ok = s.find(last, Restored); !ok {
		state, ok = s.find(last, End)
	}
	return state, ok
}

func (s *States) find(turn int, moment Moment) (State, bool) {
	for _, state := range slices.Backward(s.list) {
		if state.Turn == turn && state.Moment == moment {
			return state, true
		}
	}
	return State{}, false
}

// ForkInstead ends an error about a session without states with what works all the same.
const ForkInstead = "; coordinator session fork copies the directory as it is now"

// None is the error of a state that is not stored.
func (s *States) None(what string) error {
	if s.refused != nil {
		return s.refused
	}
	stored := s.Reach()
	if stored == "" {
		stored = "coordinator chat stores states, and it has stored none yet" + ForkInstead
	} else {
		stored = "stored is the end of " + stored
	}
	return codes.As(codes.ErrNotFound, fmt.Errorf("%s: %s", what, stored))
}

// tree returns what the directory contained in a state.
func (s *States) tree(ctx context.Context, state State) (snapshot.Tree, error) {
	tree, err := snapshot.LoadTree(ctx, s.contents, state.Tree)
	if errors.Is(err, fs.ErrNotExist) {
		err = s.None("the state is no longer stored")
	}
	return tree, err
}

// Files returns what the directory contained in a state, and where the contents are.
func (s *States) Files(ctx context.Context, state State) (snapshot.Tree, snapshot.Bodies, error) {
	if state.err != nil {
		return nil, nil, state.err
	}
	tree, err := s.tree(ctx, state)
	return tree, s.contents, err
}

// Restore makes the directory what it was in a state. With a base it only undoes what has changed
// between the two states: paths that have changed since the base are left alone, and are in
// Conflicts. Paths that are protected stay as they are.
func (s *States) Restore(ctx context.Context, to State, base *State, protect []string) (changes snapshot.Changes, err error) {
	tree, _, err := s.Files(ctx, to)
	if err != nil {
		return changes, err
	}
	was, err := s.now(ctx)
	if err == nil && base != nil {
		was, _, err = s.Files(ctx, *base)
	}
	if err != nil {
		return changes, err
	}
	return s.bring(ctx, s.dir, was, tree, protect)
}

// NoteRestored stores that the session has left the directory as in a state, behind its last turn.
// What others have changed there is not part of it.
func (s *States) NoteRestored(last int, as State) error {
	as.Turn, as.Moment, as.Time = last, Restored, time.Now()
	s.list = append(s.list, as)
	return s.store()
}

// Pull brings what a state has into another directory. With a base only what has changed since it
// is written, and files that have changed on both sides are conflicts.
func (s *States) Pull(ctx context.Context, state State, base *State, dir string, protect []string) (changes snapshot.Changes, err error) {
	tree, _, err := s.Files(ctx, state)
	var was snapshot.Tree
	if err == nil && base != nil {
		was, err = s.tree(ctx, *base)
	}
	if err != nil {
		return changes, err
	}
	return s.bring(ctx, dir, was, tree, protect)
}

func (s *States) bring(ctx context.Context, dir string, was, tree snapshot.Tree, protect []string) (changes snapshot.Changes, err error) {
	base, err := was.Manifest(ctx, s.contents)
	if err != nil {
		return changes, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return changes, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	return snapshot.Sync(ctx, root, base, tree, s.contents, &snapshot.Options{Protect: protect, Skip: isGit})
}
