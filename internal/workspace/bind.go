package workspace

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// ErrForeign says that bodies are, or would be, where those of another fleet are.
var ErrForeign = errors.New("the place belongs to another fleet")

// ErrUnknownStore says that the fleet names a store that is not in the settings of this process.
var ErrUnknownStore = errors.New("this process was not told of that store")

// record says where the bodies of a fleet are. It is in the fleet, and in the store that it names.
type record struct {
	Fleet protocol.Fleet `json:"fleet"`
	ID    string         `json:"id"`
	URL   string         `json:"url"`
}

// inServers is the URL of bodies that are in the fleet's own servers.
const inServers = "nats:"

// CheckURL returns an error for what cannot be the place of bodies; "" can.
func CheckURL(url string) error {
	if url == "" {
		return nil
	}
	_, err := openS3(record{URL: url})
	return err
}

// Bind decides where a fleet, whose streams must exist, keeps its bodies:
// s3://BUCKET/PREFIX?endpoint=URL&region=NAME, or where it does, which is its own servers when
// no process has decided before; that is "". From then on each process finds them there. A process
// whose NATS user may not decide leaves that to another one, and uses the servers until then. It is
// an error when they are elsewhere already, and when the prefix belongs to another fleet, which
// wraps [ErrForeign].
func Bind(ctx context.Context, nc *nats.Conn, fleet protocol.Fleet, url string) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	have, err := bound(ctx, js, fleet)
	if err == nil && have == (record{}) {
		err = natsio.CheckRights(ctx, nc, natsio.PlaceRights(fleet))
		switch {
		case errors.Is(err, natsio.ErrRights) && url == "":
			return nil
		case err != nil:
			return fmt.Errorf("bodies %s: start coordinator serve --bodies first, which decides for the fleet: %w", url, err)
		}
		have, err = bind(ctx, js, record{Fleet: fleet, ID: uuid.NewString(), URL: cmp.Or(url, inServers)})
	}
	if err != nil {
		return fmt.Errorf("bodies %s: %w", url, err)
	}
	if url != "" && have.URL != url {
		return fmt.Errorf("bodies %s: those of fleet %s are in %s already; choose a store when the fleet is created", url, fleet, have.URL)
	}
	if have.URL == inServers || url == "" { // another process's, which has its credentials
		return nil
	}
	there, err := openS3(have)
	if err != nil {
		return err
	}
	return there.claim(ctx)
}

// bind stores where bodies are to be, and returns what is stored: another process may be faster.
func bind(ctx context.Context, js jetstream.JetStream, at record) (record, error) {
	if at.URL != inServers {
		if err := mayBind(ctx, js, at); err != nil {
			return record{}, err
		}
	}
	body, err := json.Marshal(at)
	if err != nil {
		return record{}, err
	}
	places, err := js.KeyValue(ctx, wire.PlacesBucket(at.Fleet))
	if err != nil {
		return record{}, err
	}
	if _, err := places.Create(ctx, wire.BodiesKey, body); !errors.Is(err, jetstream.ErrKeyExists) {
		return at, err
	}
	var have record
	known := pause.Until(ctx, pause.Retry, func() bool { // one of several servers may not know it yet
		have, err = bound(ctx, js, at.Fleet)
		return err != nil || have != (record{})
	})
	if !known {
		return record{}, context.Cause(ctx)
	}
	return have, err
}

// mayBind finds out whether neither the fleet has bodies, nor another one has the store.
func mayBind(ctx context.Context, js jetstream.JetStream, at record) error {
	there, err := openS3(at)
	if err != nil {
		return err
	}
	objects, err := natsio.ListObjects(ctx, js, wire.BodiesBucket(at.Fleet), func(string) bool { return true })
	if err != nil {
		return err
	}
	if len(objects) > 0 {
		return fmt.Errorf("fleet %s has %d bodies in its NATS servers already: a store is for a new fleet", at.Fleet, len(objects))
	}
	owner, err := there.owner(ctx)
	if err == nil && owner != (record{}) {
		err = fmt.Errorf("%w: %q", ErrForeign, owner.Fleet)
	}
	return err
}

// bound is where the bodies of a fleet are; the zero record when that is not decided.
func bound(ctx context.Context, js jetstream.JetStream, fleet protocol.Fleet) (r record, err error) {
	places, err := js.KeyValue(ctx, wire.PlacesBucket(fleet))
	if err != nil {
		return record{}, fmt.Errorf("open %s: %w", wire.PlacesBucket(fleet), err)
	}
	entry, err := places.Get(ctx, wire.BodiesKey)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return record{}, nil
	}
	if err == nil {
		err = json.Unmarshal(entry.Value(), &r)
	}
	if err != nil {
		return record{}, fmt.Errorf("look where the bodies are: %w", err)
	}
	return r, nil
}

// openBodies opens the bodies of a fleet, wherever they are. A user who may write in the fleet may
// have written its record: no credentials go to a store that is not in the settings of this
// process.
func openBodies(ctx context.Context, js jetstream.JetStream, fleet protocol.Fleet, url string) (bodies, error) {
	at, err := bound(ctx, js, fleet)
	if err != nil {
		return nil, err
	}
	if at.URL != "" && at.URL != inServers {
		if at.URL != url {
			return nil, fmt.Errorf("fleet %s stores contents of workspaces in %q: %w; if the store is yours, give that URL as --bodies, or in TOOLFLEET_BODIES; otherwise someone has changed the record", fleet, at.URL, ErrUnknownStore)
		}
		return openS3(at)
	}
	store, err := js.ObjectStore(ctx, wire.BodiesBucket(fleet))
	if err != nil {
		return nil, fmt.Errorf("open object store %s: %w", wire.BodiesBucket(fleet), err)
	}
	return natsBodies{js, store, fleet, refresh}, nil
}

// Dir is where the files of a workspace are in its trees; the other directories belong to its
// shell and its tools.
const Dir = "workspace"

// isFile reports whether a path of a tree is one of the workspace itself.
func isFile(path string) bool { return system.Within(Dir, path) }

var templateName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`)

// CheckTemplate returns an error for what is no name of a template.
func CheckTemplate(name string) error {
	if !templateName.MatchString(name) {
		return fmt.Errorf("%.100q: a template's name is 1 to 63 lower case letters, digits, - and _, and begins with a letter or digit", name)
	}
	return nil
}

// templates begins what stands for a template in the place of a lane: no hash of a lane has a dash.
const templates = "template-"

func templateLane(name string) wire.LaneHash { return wire.LaneHash(templates + name) }

// TemplateOf makes a template of the workspace that a lane has. The errors are those of
// [Store.Fork].
func (s *Store) TemplateOf(ctx context.Context, name string, lane wire.LaneHash) error {
	if err := s.mayMakeTemplate(ctx, name); err != nil {
		return err
	}
	if err := s.may(ctx, judge.See, judge.Object{Kind: judge.Workspace, ID: string(lane)}, lane); err != nil {
		return err
	}
	return s.fork(ctx, lane, "", s.unbegun(templateLane(name)), isFile)
}

// TemplateFrom makes a template of a directory. The error wraps [ErrExists] when there is one of
// that name.
func (s *Store) TemplateFrom(ctx context.Context, name string, dir *os.Root, skip func(string, bool) bool) error {
	if err := s.mayMakeTemplate(ctx, name); err != nil {
		return err
	}
	delta, err := snapshot.Save(ctx, dir, snapshot.Tree{}, snapshot.Index{}, s, &snapshot.Options{Skip: skip})
	if err == nil {
		err = delta.Outline(ctx, s)
	}
	if err != nil {
		return err
	}
	tree := snapshot.Tree{Dir: {Type: protocol.TypeDir, Mode: 0o700}}
	for path, node := range delta.Set {
		tree[Dir+"/"+path] = node
	}
	return s.begin(ctx, s.unbegun(templateLane(name)), &snapshot.Delta{Set: tree, Stored: delta.Stored}, "", templateCall)
}

// templateOwner is the owner of a template that is made in a context: one of no tenant is the
// fleet's, and every tenant may use it.
func templateOwner(ctx context.Context) judge.Owner {
	if who := judge.Of(ctx); who.By() != "" || wire.TenantOf(ctx) != "" {
		return ownerIn(ctx)
	}
	return judge.TheFleet()
}

func (s *Store) mayMakeTemplate(ctx context.Context, name string) error {
	return judge.Judge(ctx, judge.Make, judge.Object{Kind: judge.Template, ID: name, Owner: templateOwner(ctx)})
}

// may judges an act on a template, or a workspace, which has its owner in its checkpoints. The
// error wraps [ErrNone] when there is none.
func (s *Store) may(ctx context.Context, act judge.Act, on judge.Object, lane wire.LaneHash) (err error) {
	if on.Owner, err = s.Owner(ctx, lane); err != nil {
		return err
	}
	return judge.Judge(ctx, act, on)
}

func (s *Store) mayTemplate(ctx context.Context, act judge.Act, name string) error {
	return s.may(ctx, act, judge.Object{Kind: judge.Template, ID: name}, templateLane(name))
}

// templateCall stands for the calls that made a directory.
const templateCall = "template"

// FromTemplate begins the workspace of a lane with a template. The errors are those of
// [Store.Fork].
func (s *Store) FromTemplate(ctx context.Context, name string, lane protocol.Lane) error {
	if err := s.mayTemplate(ctx, judge.Use, name); err != nil {
		return err
	}
	return s.Fork(ctx, templateLane(name), "", lane, isFile)
}

// RemoveTemplate removes a template. Workspaces that began with it stay. The error wraps [ErrNone]
// when there is none.
func (s *Store) RemoveTemplate(ctx context.Context, name string) error {
	if err := s.mayTemplate(ctx, judge.Remove, name); err != nil {
		return err
	}
	return s.Remove(ctx, templateLane(name), 0)
}

// Templates returns all templates, by name. With an error that is about single ones it returns the
// others.
func (s *Store) Templates(ctx context.Context) ([]report.Template, error) {
	names, err := s.journals(ctx, templates)
	if err != nil {
		return nil, fmt.Errorf("list templates: %w", err)
	}
	list, unreadable := []report.Template{}, []error(nil)
	for _, name := range names {
		last, err := s.last(ctx, templateLane(name))
		if err != nil {
			return nil, err
		}
		if last == nil || judge.Judge(ctx, judge.See, judge.Object{Kind: judge.Template, Owner: last.owner(templateLane(name))}) != nil {
			continue // it was removed meanwhile, or is not to be seen
		}
		tree, _, _, err := s.fold(ctx, templateLane(name), last)
		if there, look := s.Has(ctx, templateLane(name)); err != nil && look == nil && !there {
			continue // as above
		}
		if err != nil {
			unreadable = append(unreadable, fmt.Errorf("template %s: %w", name, err))
			continue
		}
		t := report.Template{Name: name, Time: last.at}
		for _, node := range tree.Tree {
			if node.Type == protocol.TypeFile {
				t.Files, t.Bytes = t.Files+1, t.Bytes+node.Size
			}
		}
		list = append(list, t)
	}
	return list, errors.Join(unreadable...)
}
