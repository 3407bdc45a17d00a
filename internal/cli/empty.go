package cli

import (
	"errors"
	"os"
	"reflect"
	"strings"

	"github.com/alecthomas/kong"
)

// An unset variable of a script becomes an empty value. As a flag it is an error: an empty
// --allow-tool would allow every tool. An empty environment variable counts as not set, except
// those that [narrows] marks.

// narrows marks flags without which more is allowed.
const narrows = "narrows"

var errEmptyItem = errors.New("has an empty value: omit it, and any extra comma")

// list reads a flag that takes several values.
func list(ctx *kong.DecodeContext, target reflect.Value) error {
	token, err := ctx.Scan.PopValue("value")
	if err != nil {
		return err
	}
	items, listed := token.Value.([]string) // of a file
	switch {
	case listed:
	case ctx.Value.Flag == nil: // arguments, up to the end
		items = []string{token.String()}
		for ctx.Scan.Peek().Type != kong.EOLToken {
			items = append(items, ctx.Scan.Pop().String())
		}
	default:
		items = []string{token.String()}
		if sep := ctx.Value.Tag.Sep; sep != -1 {
			items = strings.Split(items[0], string(sep))
		}
	}
	for _, item := range items {
		if strings.TrimSpace(item) == "" {
			return errEmptyItem
		}
		target.Set(reflect.Append(target, reflect.ValueOf(item)))
	}
	return nil
}

// dropEmptyEnv makes an empty variable the same as none, as it is with compose files
// that pass on what is not set. It returns their names.
func dropEmptyEnv() map[string]bool {
	empty := map[string]bool{}
	for _, pair := range os.Environ() {
		if name, value, _ := strings.Cut(pair, "="); value == "" && strings.HasPrefix(name, EnvPrefix+"_") {
			empty[name] = true
			_ = os.Unsetenv(name) // names that are set can be unset
		}
	}
	return empty
}

// checkEmpty returns the first fault of values that are empty. emptyEnv are the variables that
// were.
func checkEmpty(kctx *kong.Context, emptyEnv map[string]bool) error {
	for _, at := range kctx.Path {
		if f := at.Flag; f != nil && f.Target.Kind() == reflect.String && strings.TrimSpace(f.Target.String()) == "" {
			return Usagef("--%s: is empty; want %s, or leave it out", f.Name, f.FormatPlaceHolder())
		}
	}
	for _, f := range kctx.Flags() {
		for _, name := range f.Envs {
			if emptyEnv[name] && f.Target.IsZero() && f.Tag.Has(narrows) {
				return Usagef("%s: is empty, which would allow more tool calls; set %s, or unset the variable", name, f.FormatPlaceHolder())
			}
		}
	}
	return nil
}
