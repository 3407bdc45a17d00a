package files

import (
	"context"
	"fmt"
	"reflect"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// operations are all file operations, by the names of their payloads' types.
var operations = table( //nolint:gochecknoglobals // a constant table
	at(reading, "read", func(p protocol.FilesRead) string { return p.Path }, (*FS).read),
	at(reading, "read", func(p sandbox.FilesReadAt) string { return p.Path }, (*FS).readAt),
	at(writing, "write", func(p protocol.FilesWrite) string { return p.Path }, (*FS).write),
	at(writing, "edit", func(p protocol.FilesEdit) string { return p.Path }, (*FS).edit),
	at(reading, "read", func(p protocol.FilesJSONRead) string { return p.Path }, (*FS).readJSON),
	at(writing, "write", func(p protocol.FilesJSONWrite) string { return p.Path }, (*FS).writeJSON),
	at(reading, "list", func(p protocol.FilesList) string { return p.Path }, (*FS).list),
	at(reading, "list", func(p protocol.FilesTree) string { return p.Path }, (*FS).tree),
	at(reading, "search", func(p protocol.FilesGlob) string { return p.Path }, (*FS).glob),
	at(reading, "search", func(p protocol.FilesSearch) string { return p.Path }, (*FS).searchAll),
	at(reading, "search", func(p sandbox.FilesSearch) string { return p.Path }, (*FS).search),
	operation((*FS).stat), // it resolves its path by itself
)

// Operation is what an [FS] does with payloads of one type.
type Operation struct {
	Payload, Value reflect.Type
	do             func(f *FS, ctx context.Context, payload any) (any, error)
}

// Name is the operation's name in the table.
func (o *Operation) Name() string { return o.Payload.String() }

// Find returns an operation by its name.
func Find(name string) (*Operation, error) {
	if op := operations[name]; op != nil {
		return op, nil
	}
	return nil, fmt.Errorf("unknown file operation %q", name)
}

// Of returns the operation of a payload.
func Of(payload protocol.Payload) (*Operation, error) { return Find(fmt.Sprintf("%T", payload)) }

// Do is a [sandbox.FileFunc]. Every error that is to be expected is a *[protocol.Error].
func (f *FS) Do(ctx context.Context, payload protocol.Payload, roots []protocol.Roots) (protocol.Value, error) {
	op, err := Of(payload)
	if err != nil {
		return nil, err
	}
	bound := *f
	bound.bounds = roots
	return op.do(&bound, ctx, payload)
}

func table(all ...*Operation) map[string]*Operation {
	named := make(map[string]*Operation, len(all))
	for _, op := range all {
		named[op.Name()] = op
	}
	return named
}

// at makes a function the operation of its payload's type, which uses the payload's path so. verb
// names it in errors.
func at[P, V any](as use, verb string, pathOf func(P) string, do func(f *FS, ctx context.Context, name string, p P) (V, error)) *Operation {
	return operation(func(f *FS, ctx context.Context, p P) (value V, err error) {
		name, err := f.reach(pathOf(p), as)
		if err != nil {
			return value, err
		}
		if value, err = do(f, ctx, name, p); err != nil {
			return value, f.fault(verb, name, err)
		}
		return value, nil
	})
}

// operation makes a function the operation of its payload's type.
func operation[P, V any](do func(f *FS, ctx context.Context, p P) (V, error)) *Operation {
	return &Operation{
		Payload: reflect.TypeFor[P](), Value: reflect.TypeFor[V](),
		do: func(f *FS, ctx context.Context, payload any) (any, error) {
			p, ok := payload.(P)
			if !ok {
				return nil, fmt.Errorf("unknown file operation %T of another package", payload)
			}
			value, err := do(f, ctx, p)
			if err != nil {
				return nil, err
			}
			return value, nil
		},
	}
}
