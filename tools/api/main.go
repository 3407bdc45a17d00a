// Command api lists the public API of a module: every exported name of the packages below pkg that
// other modules can import, one name on a line, sorted.
//
//	api -o docs/api.txt
//
// The list is kept in the repository, so that a review shows what a change adds to the API or takes
// from it.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"go/types"
	"os"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

func main() {
	path := flag.String("o", "docs/api.txt", "write the list to this `file`")
	check := flag.Bool("check", false, "change nothing, and fail if the file differs from the list")
	flag.Parse()
	if err := run(".", *path, *check); err != nil {
		fmt.Fprintln(os.Stderr, "api:", err)
		os.Exit(1)
	}
}

// run writes the API of the module in dir to the file path, or compares them.
func run(dir, path string, check bool) error {
	names, err := list(dir)
	if err != nil {
		return err
	}
	text := []byte(strings.Join(names, "\n") + "\n")
	if !check {
		return os.WriteFile(path, text, 0o644)
	}
	stored, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if !bytes.Equal(stored, text) {
		return fmt.Errorf("%s does not list the public API: run `make api` and commit the file", path)
	}
	return nil
}

// list returns a line for each exported name of the packages below pkg, with its type. A line
// starts with the path of its package.
func list(dir string) ([]string, error) {
	loaded, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedTypes | packages.NeedModule | packages.NeedImports | packages.NeedDeps | packages.NeedExportFile,
		Dir:  dir,
		Env:  append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0"),
	}, "./pkg/...")
	if err != nil {
		return nil, fmt.Errorf("load packages: %w", err)
	}
	var names []string
	for _, p := range loaded {
		if len(p.Errors) > 0 {
			return nil, p.Errors[0]
		}
		if slices.Contains(strings.Split(p.PkgPath, "/"), "internal") || p.Name == "main" {
			continue
		}
		names = append(names, exported(p)...)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// exported lists the names of one package: those of its scope, and the methods of its types.
// Methods of an interface, and fields, belong to the line of their type's package-level name.
func exported(p *packages.Package) []string {
	local := types.RelativeTo(p.Types)
	place := strings.TrimPrefix(p.PkgPath, p.Module.Path+"/")
	var names []string
	for _, name := range p.Types.Scope().Names() {
		object := p.Types.Scope().Lookup(name)
		if !object.Exported() {
			continue
		}
		kind, ok := object.(*types.TypeName)
		if !ok {
			names = append(names, place+": "+types.ObjectString(object, local))
			continue
		}
		names = append(names, place+": type "+name+members(kind.Type(), local))
		if kind.IsAlias() || types.IsInterface(kind.Type()) {
			continue
		}
		methods := types.NewMethodSet(types.NewPointer(kind.Type()))
		for method := range methods.Methods() {
			if method.Obj().Exported() && len(method.Index()) == 1 {
				names = append(names, place+": "+types.ObjectString(method.Obj(), local))
			}
		}
	}
	return names
}

// members says what a type is: the exported fields of a struct, the methods of an interface, or the
// type below it.
func members(t types.Type, local types.Qualifier) string {
	switch under := t.Underlying().(type) {
	case *types.Struct:
		var fields []string
		for field := range under.Fields() {
			if field.Exported() {
				fields = append(fields, field.Name()+" "+types.TypeString(field.Type(), local))
			}
		}
		return " struct {" + strings.Join(fields, "; ") + "}"
	default:
		return " " + types.TypeString(under, local)
	}
}
