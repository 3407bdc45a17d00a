package shell

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// values is what is known of the variables of a script. Arithmetic evaluates the values of
// variables as code, so it is only harmless with those that surely are numbers: they are set
// to one in a statement of the script itself, and never to anything else, by no script around it or
// in it.
type values struct {
	*variables

	numbers map[string]uint // where in the script each is set first
	arrays  map[string]bool
}

// variables is what all scripts of a command line do with variables: an exported value, a read-only
// one and one that eval sets are seen by the others.
type variables struct {
	used     map[string]int  // names that are relied on to be numbers, and the line of one use
	others   map[string]bool // names that may be set to something that is no number
	texts    []string        // words that may hold the name of one
	anything bool            // any may be set to anything
}

func newVariables() *variables {
	return &variables{used: map[string]int{}, others: map[string]bool{}}
}

// notNumbers returns the names that are used as numbers and may be something else.
func (v *variables) notNumbers() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(v.used)), func(name string) bool { return !v.mayBeOther(name) })
}

// mayBeOther reports whether a variable may be set to something that is no number, by what was read
// so far.
func (v *variables) mayBeOther(name string) bool {
	return v.anything || v.others[name] || slices.ContainsFunc(v.texts, func(text string) bool { return mayName(text, name) })
}

// mayName reports whether a word of a builtin is the name of a variable, as it is, with a subscript
// or behind the letters of options.
func mayName(text, name string) bool {
	text, _, _ = strings.Cut(text, "[")
	return text == name || strings.HasPrefix(text, "-") && len(text) > len(name)+1 && strings.HasSuffix(text, name)
}

func valuesOf(file *syntax.File, shared *variables) *values {
	v := &values{variables: shared, numbers: map[string]uint{}, arrays: map[string]bool{}}
	for _, stmt := range file.Stmts {
		if !stmt.Background && !stmt.Coprocess {
			v.sets(stmt.Cmd)
		}
	}
	syntax.Walk(file, func(node syntax.Node) bool {
		v.mayChange(node)
		return true
	})
	return v
}

// sets notes the numbers that a statement sets for what follows.
func (v *values) sets(command syntax.Command) {
	note := func(name string, at syntax.Pos) {
		if _, set := v.numbers[name]; !set && !Evaluated(name) && !setByShell(name) {
			v.numbers[name] = at.Offset()
		}
	}
	switch command := command.(type) {
	case *syntax.CallExpr:
		for _, a := range command.Assigns {
			if len(command.Args) == 0 && !a.Append && a.Index == nil && a.Value != nil && numeric(a.Value) {
				note(a.Name.Value, a.End())
			}
		}
	case *syntax.ForClause:
		switch loop := command.Loop.(type) {
		case *syntax.WordIter:
			if !command.Select && len(loop.Items) > 0 {
				note(loop.Name.Value, loop.End())
			}
		case *syntax.CStyleLoop:
			if init, is := loop.Init.(*syntax.BinaryArithm); is && init.Op == syntax.Assgn {
				if name, is := init.X.(*syntax.Word); is && isName(name.Lit()) {
					note(name.Lit(), init.Pos())
				}
			}
		}
	}
}

// setByShell reports whether bash itself sets a variable, to a text that commands have or read.
func setByShell(name string) bool {
	return slices.Contains(strings.Fields("_ REPLY MAPFILE OPTARG PWD OLDPWD"), name)
}

// mayChange notes what a node may set to something that is no number.
func (v *values) mayChange(node syntax.Node) {
	switch node := node.(type) {
	case *syntax.Assign:
		if node.Name == nil {
			return
		}
		name := node.Name.Value
		if node.Array != nil || node.Index != nil {
			v.arrays[name] = true
			v.others[name] = true
		} else if node.Value != nil && !numeric(node.Value) {
			v.others[name] = true
		}
	case *syntax.DeclClause:
		array := false
		for _, a := range node.Args {
			array = array || a.Name == nil && strings.ContainsAny(source(a.Value), "aA")
		}
		for _, a := range node.Args {
			if a.Name != nil {
				v.arrays[a.Name.Value] = v.arrays[a.Name.Value] || array
				v.others[a.Name.Value] = true // it may be read only, or another one
			}
		}
	case *syntax.ForClause:
		if iter, is := node.Loop.(*syntax.WordIter); is {
			for _, item := range iter.Items {
				if !numeric(item) && !sequence.MatchString(item.Lit()) {
					v.others[iter.Name.Value] = true
				}
			}
			if len(iter.Items) == 0 {
				v.others[iter.Name.Value] = true
			}
		}
	case *syntax.ParamExp:
		if node.Exp != nil && (node.Exp.Op == syntax.AssignUnset || node.Exp.Op == syntax.AssignUnsetOrNull) {
			v.others[node.Param.Value] = true
		}
	case *syntax.CoprocClause:
		if node.Name != nil {
			v.others[node.Name.Lit()] = true
		}
	case *syntax.CallExpr:
		if len(node.Args) > 0 {
			v.calls(node)
		}
	}
}

// calls notes what a builtin may set.
func (v *values) calls(node *syntax.CallExpr) {
	program := v.wordOf(node.Args[0])
	switch program.Text {
	case "read", "mapfile", "readarray", "getopts", "printf", "wait", "unset":
		for _, arg := range node.Args[1:] {
			word := v.wordOf(arg)
			if word.Known {
				v.texts = append(v.texts, word.Text)
			}
			if program.Text == "read" || program.Text == "mapfile" || program.Text == "readarray" {
				v.arrays[word.Text] = true
			}
		}
	case "builtin", "command":
		for _, arg := range node.Args[1:] {
			word := v.wordOf(arg)
			v.anything = v.anything || !word.Known || word.Text == "." || word.Text == "source"
			v.texts = append(v.texts, word.Text)
		}
	case ".", "source", "alias", "shopt":
		v.anything = true
	default:
		if !program.Known {
			v.anything = true
		}
	}
}

var (
	integer  = regexp.MustCompile(`^-?(0[xX][0-9a-fA-F]+|[0-9]+)$`)
	sequence = regexp.MustCompile(`^\{-?[0-9]+\.\.-?[0-9]+(\.\.-?[0-9]+)?\}$`)
)

// numeric reports whether the value of a word is a number, whatever variables are: arithmetic
// always yields one.
func numeric(word *syntax.Word) bool {
	if integer.MatchString(word.Lit()) {
		return true
	}
	if len(word.Parts) != 1 {
		return false
	}
	switch part := word.Parts[0].(type) {
	case *syntax.ArithmExp:
		return true
	case *syntax.ParamExp:
		return counts(part)
	case *syntax.SglQuoted:
		return integer.MatchString(part.Value) && !part.Dollar
	case *syntax.DblQuoted:
		return len(part.Parts) == 1 && !part.Dollar && numeric(&syntax.Word{Parts: part.Parts})
	default:
		return false
	}
}

// counts reports whether an expansion is a number by itself: $#, $?, $$, $! or a length.
func counts(p *syntax.ParamExp) bool {
	if p.Param == nil || p.Excl || p.Exp != nil || p.Repl != nil || p.Slice != nil || p.Index != nil && !isAll(p.Index) {
		return false
	}
	switch p.Param.Value {
	case "#", "?", "$", "!":
		return true
	default:
		return p.Length
	}
}

// number reports whether an arithmetic expression has numbers only; nil is none.
func (v *values) number(x syntax.ArithmExpr) bool {
	switch x := x.(type) {
	case nil:
		return true
	case *syntax.BinaryArithm:
		return v.number(x.X) && v.number(x.Y)
	case *syntax.UnaryArithm:
		return v.number(x.X)
	case *syntax.ParenArithm:
		return v.number(x.X)
	case *syntax.Word:
		return len(x.Parts) == 1 && v.part(x.Parts[0])
	default:
		return false
	}
}

// part is number for a word of one part.
func (v *values) part(part syntax.WordPart) bool {
	switch part := part.(type) {
	case *syntax.Lit:
		return integer.MatchString(part.Value) || v.isSet(part.Value, part.Pos())
	case *syntax.SglQuoted:
		return integer.MatchString(part.Value) && !part.Dollar
	case *syntax.DblQuoted:
		return len(part.Parts) == 1 && !part.Dollar && v.part(part.Parts[0])
	case *syntax.ParamExp:
		return v.isNumber(part)
	case *syntax.ArithmExp:
		return v.number(part.X)
	default:
		return false
	}
}

// isNumber reports whether an expansion surely is a number.
func (v *values) isNumber(p *syntax.ParamExp) bool {
	if counts(p) {
		return true
	}
	return p.Param != nil && p.Dollar.IsValid() && p.Index == nil && !p.Excl && !p.Length && p.Exp == nil && p.Repl == nil && p.Slice == nil &&
		v.isSet(p.Param.Value, p.Pos())
}

// isSet reports whether a variable was set to a number before a position.
func (v *values) isSet(name string, at syntax.Pos) bool {
	set, is := v.numbers[name]
	if !is || at.Offset() < set || v.mayBeOther(name) {
		return false
	}
	v.used[name] = int(at.Line())
	return true
}
