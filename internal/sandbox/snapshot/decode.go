package snapshot

import (
	"encoding/json"
	"errors"
	"io"
)

// maxEntry is more than the JSON of any entry has that [Tree.Validate] accepts.
const maxEntry = 16 << 20

// Reader reads JSON that others wrote, entry by entry, and ends with the first entry that
// [Tree.Validate] does not accept: what memory it takes is bounded by [Limits], however much there
// is. An error of what it reads from is returned as it is, any other is an [*Error].
type Reader struct {
	from   allowance
	json   *json.Decoder
	limits Limits
}

// NewReader returns a reader of trees within limits.
func NewReader(from io.Reader, limits Limits) *Reader {
	r := &Reader{from: allowance{from: from}, limits: limits.withDefaults()}
	r.json = json.NewDecoder(&r.from)
	return r
}

// Tree reads a tree.
func (r *Reader) Tree() (Tree, error) {
	tree, b := Tree{}, budget{limits: r.limits}
	err := r.Object(func(name string) error {
		var node Node
		if err := r.Value(&node); err != nil {
			return err
		}
		name, err := tree.put(name, node)
		if err != nil {
			return r.failed(err)
		}
		return b.node(name, tree[name])
	})
	return tree, err
}

// Delta reads a delta.
func (r *Reader) Delta() (d Delta, err error) {
	err = r.Object(func(field string) (err error) {
		switch field {
		case "set":
			d.Set, err = r.Tree()
		case "removed":
			d.Removed, err = r.names()
		case "inline":
			err = r.Value(&d.Inline)
		default:
			err = r.Skip()
		}
		return err
	})
	return d, err
}

// names reads paths, of no more than a tree has.
func (r *Reader) names() (names Names, err error) {
	b := budget{limits: r.limits}
	err = r.inside('[', ']', func() error {
		var text string
		if err := r.Value(&text); err != nil {
			return err
		}
		name, err := fromText(text)
		if err != nil {
			return r.failed(err)
		}
		names = append(names, name)
		return b.entry(name, "")
	})
	return names, err
}

// Object reads an object; field reads the value of each of its fields.
func (r *Reader) Object(field func(name string) error) error {
	return r.inside('{', '}', func() error {
		token, err := r.token()
		if err != nil {
			return err
		}
		name, _ := token.(string) // only strings are names
		return field(name)
	})
}

// inside reads what is between two delimiters.
func (r *Reader) inside(begin, end json.Delim, do func() error) error {
	if err := r.delim(begin); err != nil {
		return err
	}
	for r.json.More() {
		if err := do(); err != nil {
			return err
		}
	}
	return r.delim(end)
}

func (r *Reader) delim(want json.Delim) error {
	token, err := r.token()
	if err == nil && token != want {
		err = corruptf("%v where %v must be", token, want)
	}
	return err
}

func (r *Reader) token() (json.Token, error) {
	r.from.left = maxEntry
	token, err := r.json.Token()
	return token, r.failed(err)
}

// Skip passes over a value that is no larger than an entry.
func (r *Reader) Skip() error { return r.Value(new(json.RawMessage)) }

// Value reads a value that is no larger than an entry.
func (r *Reader) Value(v any) error {
	r.from.left = maxEntry
	return r.failed(r.json.Decode(v))
}

// error is an error of the decoder as the reader returns it.
func (r *Reader) failed(err error) error {
	if err == nil || r.from.err != nil {
		return r.from.err
	}
	if _, is := errors.AsType[*Error](err); is {
		return err
	}
	return corruptf("no tree: %v", err)
}

// allowance is a reader with a bound of bytes.
type allowance struct {
	from io.Reader
	left int
	err  error // of from, but for its end
}

// Read implements [io.Reader].
func (a *allowance) Read(p []byte) (int, error) {
	if a.left == 0 {
		return 0, limitf("", "an entry takes more than %d bytes", maxEntry)
	}
	n, err := io.ReadFull(a.from, p[:min(len(p), a.left)]) // the decoder looks at all that it has after each read
	a.left -= n
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = io.EOF
	}
	if err != nil && !errors.Is(err, io.EOF) {
		a.err = err
	}
	return n, err
}

// Usage is what a tree takes of [Limits].
type Usage struct {
	Entries int   // files, directories and links
	Names   int   // bytes of paths and targets
	Parts   int   // of contents, holes excepted
	Bytes   int64 // of them
	Sizes   int64 // bytes of files, with their holes
}

// Usage adds up what a tree takes.
func (t Tree) Usage() (u Usage) {
	for name, node := range t {
		u = u.Plus(usageOf(name, node.Target)).Plus(usageOfFile(node))
	}
	return u
}

// Plus returns the sum of two usages.
func (u Usage) Plus(other Usage) Usage {
	return Usage{u.Entries + other.Entries, u.Names + other.Names, u.Parts + other.Parts, u.Bytes + other.Bytes, u.Sizes + other.Sizes}
}

func usageOf(name, target string) Usage {
	return Usage{Entries: 1, Names: len(name) + len(target)}
}

func usageOfFile(node Node) Usage {
	u := Usage{Sizes: min(max(node.Size, 0), MaxSizes+1)}
	for _, p := range node.Parts {
		if p.Sum != "" {
			u.Parts, u.Bytes = u.Parts+1, u.Bytes+p.Size
		}
	}
	return u
}

// Within returns an error that wraps [ErrLimit] when it is more than the limits allow.
func (u Usage) Within(limits Limits) error { return limits.withDefaults().check("", u) }

// check is Within of limits that are set; name is the path that was added last.
func (l Limits) check(name string, u Usage) error {
	switch {
	case u.Entries > l.MaxEntries:
		return limitf(name, "more than %d entries", l.MaxEntries)
	case u.Names > MaxNames:
		return limitf(name, "the names have more than %d bytes together", MaxNames)
	case u.Parts > partsPerEntry*l.MaxEntries:
		return limitf(name, "the files have more than %d parts together", partsPerEntry*l.MaxEntries)
	case u.Bytes > l.MaxBytes:
		return limitf(name, "the files have more than %d bytes together", l.MaxBytes)
	case u.Sizes > MaxSizes:
		return limitf(name, "the files have more than %d bytes together, with their holes", int64(MaxSizes))
	default:
		return nil
	}
}

// budget is the rest of the limits of one tree; nil is without limits.
type budget struct {
	limits Limits
	used   Usage
}

// entry takes an entry with its name and target from the budget.
func (b *budget) entry(name, target string) error {
	if b != nil && (len(name) > MaxPath || len(target) > MaxPath) {
		return limitf(name, "a path has more than %d bytes", MaxPath)
	}
	return b.take(name, usageOf(name, target))
}

// content takes a part of a file from the budget, and file all of a file.
func (b *budget) content(name string, part Part) error {
	return b.take(name, Usage{Parts: 1, Bytes: part.Size})
}

func (b *budget) file(name string, node Node) error { return b.take(name, usageOfFile(node)) }

func (b *budget) take(name string, u Usage) error {
	if b == nil {
		return nil
	}
	b.used = b.used.Plus(u)
	return b.limits.check(name, b.used)
}

// node takes a node of others from the budget, or returns what is wrong with it.
func (b *budget) node(name string, n Node) error {
	for _, err := range []error{checkName(name), b.entry(name, n.Target), n.validate(name)} {
		if err != nil {
			return err
		}
	}
	return b.file(name, n)
}
