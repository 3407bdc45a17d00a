// Command typecheck shows what is wrong with packages on other systems than this
// one, their tests included.
//
//	typecheck darwin/arm64 windows/amd64
//
// It reads the source of all that they import and compiles nothing, which takes a
// tenth of the time that a build for another system takes where there is no cache.
// What only an assembler or a linker would refuse, it does not see.
package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/tools/go/packages"
)

func main() {
	sound := true
	for _, system := range os.Args[1:] {
		n, err := check(os.Stdout, ".", system)
		if err != nil {
			fmt.Fprintln(os.Stderr, "typecheck:", err)
		}
		sound = sound && n == 0 && err == nil
	}
	if !sound {
		os.Exit(1)
	}
}

// check writes all that is wrong in the module in dir, and in what it imports, on a
// system such as "windows/amd64", and returns how much that is.
func check(out io.Writer, dir, system string) (wrong int, err error) {
	goos, goarch, ok := strings.Cut(system, "/")
	if !ok {
		return 0, fmt.Errorf("%q is not a system and a processor, such as windows/amd64", system)
	}
	checked, err := packages.Load(&packages.Config{
		Mode:  packages.LoadAllSyntax &^ packages.NeedTypesInfo,
		Dir:   dir,
		Env:   append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0"),
		Tests: true,
	}, "./...")
	if err != nil {
		return 0, fmt.Errorf("load packages for %s: %w", system, err)
	}
	packages.Visit(checked, nil, func(p *packages.Package) {
		for _, fault := range p.Errors {
			wrong++
			fmt.Fprintf(out, "%s: %s\n", system, fault)
		}
	})
	return wrong, nil
}
