package shell

import (
	"regexp"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// values is what is known of the variables of a script. Arithmetic evaluates the values of
// variables as code, so it is only harmless with those that surely are numbers: they are set
// to one in a statement of the script itself, which nothing can skip, and never to anything else.
type values struct {
	numbers map[string]uint // where in the script each is set first
	arrays  map[string]bool
}

func valuesOf(file *syntax.File) *values {
	v := &values{numbers: map[string]uint{}, arrays: map[string]bool{}}
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
		if _, set := v.numbers[name]; !set && !Evaluated(name) {
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

// mayChange takes back what a node may set to something that is no number.
func (v *values) mayChange(node syntax.Node) {
	switch node := node.(type) {
	case *syntax.Assign:
		if node.Name == nil {
			return
		}
		name := node.Name.Value
		if node.Array != nil || node.Index != nil {
			v.arrays[name] = true
			delete(v.numbers, name)
		} else if node.Value != nil && !numeric(node.Value) {
			delete(v.numbers, name)
		}
	case *syntax.DeclClause:
		array := false
		for _, a := range node.Args {
			array = array || a.Name == nil && strings.ContainsAny(source(a.Value), "aA")
		}
		for _, a := range node.Args {
			if a.Name != nil {
				v.arrays[a.Name.Value] = v.arrays[a.Name.Value] || array
				delete(v.numbers, a.Name.Value) // it may be read only, or another one
			}
		}
	case *syntax.ForClause:
		if iter, is := node.Loop.(*syntax.WordIter); is {
			for _, item := range iter.Items {
				if !numeric(item) && !sequence.MatchString(item.Lit()) {
					delete(v.numbers, iter.Name.Value)
				}
			}
			if len(iter.Items) == 0 {
				delete(v.numbers, iter.Name.Value)
			}
		}
	case *syntax.ParamExp:
		if node.Exp != nil && (node.Exp.Op == syntax.AssignUnset || node.Exp.Op == syntax.AssignUnsetOrNull) {
			delete(v.numbers, node.Param.Value)
		}
	case *syntax.CoprocClause:
		if node.Name != nil {
			delete(v.numbers, node.Name.Lit())
		}
	case *syntax.CallExpr:
		if len(node.Args) > 0 {
			v.calls(node)
		}
	}
}

// calls takes back what a builtin may set.
func (v *values) calls(node *syntax.CallExpr) {
	program := v.wordOf(node.Args[0])
	switch program.Text {
	case "read", "mapfile", "readarray", "getopts", "printf", "wait", "unset":
		for _, arg := range node.Args[1:] {
			word := v.wordOf(arg)
			for name := range v.numbers {
				if word.Known && strings.Contains(word.Text, name) {
					delete(v.numbers, name)
				}
			}
			if program.Text == "read" || program.Text == "mapfile" || program.Text == "readarray" {
				v.arrays[word.Text] = true
			}
		}
	case "builtin", "command", "eval", ".", "source", "trap", "alias", "shopt":
		clear(v.numbers)
	default:
		if !program.Known {
			clear(v.numbers)
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
	return is && at.Offset() >= set
}
