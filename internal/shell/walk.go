package shell

import (
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// walker reads the syntax of one script. Syntax that is not listed in visit as harmless is a
// command that is not known: bash evaluates values as code in more constructs than can be listed.
type walker struct {
	*reader
	*values

	text   string
	depth  int
	posix  bool
	inputs []stdin // of the nodes around this one
	piped  map[*syntax.Stmt]bool
	failed error
}

// visit is called with each node, and with nil at its end.
func (w *walker) visit(node syntax.Node) bool {
	if node == nil {
		w.inputs = w.inputs[:len(w.inputs)-1]
		return true
	}
	if w.failed != nil {
		return false
	}
	input := w.inputs[len(w.inputs)-1]
	switch node := node.(type) {
	case *syntax.Stmt:
		input = w.inputOf(node, input)
	case *syntax.FuncDecl, *syntax.CoprocClause: // callers and others give it one
		input = stdin{given: true}
	case *syntax.ProcSubst:
		if node.Op == syntax.CmdOut {
			input = stdin{given: true}
		}
	}
	w.inputs = append(w.inputs, input)
	at := scope{line: int(node.Pos().Line()), depth: w.depth, stdin: input, posix: w.posix}
	if !w.harmless(node, at) && w.failed == nil {
		w.failed = w.evaluates(source(node), at)
	}
	return true
}

// harmless reports whether a node evaluates nothing but the commands in it; those that are
// commands themselves are added.
func (w *walker) harmless(node syntax.Node, at scope) bool {
	if w.disputed(node) {
		return false
	}
	switch node := node.(type) {
	case *syntax.File, *syntax.Stmt, *syntax.Comment, *syntax.Block, *syntax.Subshell, *syntax.IfClause, *syntax.WhileClause,
		*syntax.CaseClause, *syntax.CaseItem, *syntax.FuncDecl, *syntax.TimeClause,
		*syntax.Word, *syntax.Lit, *syntax.SglQuoted, *syntax.ProcSubst, *syntax.ArrayExpr,
		*syntax.TestClause, *syntax.ParenTest, *syntax.WordIter,
		*syntax.BinaryArithm, *syntax.UnaryArithm, *syntax.ParenArithm: // judged where they stand
		return true
	case *syntax.BinaryCmd:
		w.piped[node.Y] = node.Op == syntax.Pipe || node.Op == syntax.PipeAll
		return true
	case *syntax.ForClause:
		iter, words := node.Loop.(*syntax.WordIter)
		return !node.Select && (!words || w.assigns(iter.Name.Value, nil))
	case *syntax.CoprocClause:
		return node.Name == nil || isName(node.Name.Lit()) && w.assigns(node.Name.Lit(), nil)
	case *syntax.DblQuoted:
		return !node.Dollar // the translation is expanded again
	case *syntax.CmdSubst:
		return !node.TempFile && !node.ReplyVar
	case *syntax.ExtGlob:
		return !strings.ContainsAny(node.Pattern.Value, "$`<>")
	case *syntax.ParamExp:
		return w.parameter(node)
	case *syntax.ArithmExp:
		return !node.Unsigned && w.number(node.X)
	case *syntax.ArithmCmd:
		return !node.Unsigned && w.number(node.X)
	case *syntax.CStyleLoop:
		return w.number(node.Init) && w.number(node.Cond) && w.number(node.Post)
	case *syntax.LetClause:
		for _, x := range node.Exprs {
			if !w.number(x) {
				return false
			}
		}
		return true
	case *syntax.UnaryTest:
		if node.Op == syntax.TsVarSet {
			word, is := node.X.(*syntax.Word)
			return is && isName(word.Lit())
		}
		return node.Op != syntax.TsRefVar
	case *syntax.BinaryTest:
		return w.comparison(node)
	case *syntax.Redirect:
		return w.redirect(node)
	case *syntax.DeclClause:
		return w.declares(node)
	case *syntax.Assign:
		return w.assign(node)
	case *syntax.ArrayElem:
		return node.Index == nil || w.number(node.Index)
	case *syntax.CallExpr:
		w.failed = w.call(node, at)
		return true
	default:
		return false
	}
}

func (w *walker) call(node *syntax.CallExpr, at scope) error {
	var assigned []string
	for _, a := range node.Assigns {
		if a.Name != nil {
			assigned = append(assigned, a.Name.Value)
		}
	}
	if len(node.Args) == 0 {
		w.script.Assigned = append(w.script.Assigned, assigned...)
		return nil
	}
	words := make([]Word, len(node.Args))
	for i, arg := range node.Args {
		words[i] = w.wordOf(arg)
	}
	return w.command(words, assigned, at)
}

// redirect adds a file, and reports whether the descriptor is no code.
func (w *walker) redirect(node *syntax.Redirect) bool {
	switch node.Op {
	case syntax.RdrIn, syntax.RdrOut, syntax.AppOut, syntax.RdrInOut, syntax.RdrClob, syntax.RdrAll, syntax.AppAll:
		w.script.Files = append(w.script.Files, Redirect{Path: w.wordOf(node.Word), Write: node.Op != syntax.RdrIn})
	case syntax.DplOut: // bash expands what is no descriptor twice
		if word := w.wordOf(node.Word); !w.number(node.Word) && (!word.Known || strings.ContainsAny(word.Text, "$`<>")) {
			return false
		}
	default: // descriptors and here documents
	}
	if node.N == nil || strings.Trim(node.N.Value, "0123456789") == "" {
		return true
	}
	name := strings.Trim(node.N.Value, "{}")
	return isName(name) && w.assigns(name, nil)
}

// parameter reports whether an expansion is of a value as it is.
func (w *walker) parameter(p *syntax.ParamExp) bool {
	if p.Param == nil || p.Flags != nil || p.Width || p.IsSet || p.NestedParam != nil || len(p.Modifiers) > 0 ||
		p.Split+p.GlobSubst+p.RcExpand != syntax.OptUnset || !p.Dollar.IsValid() {
		return false
	}
	if p.Index != nil && !isAll(p.Index) && !w.number(p.Index) {
		return false
	}
	if p.Excl { // names of variables, or keys of an array
		return (p.Names != 0 || isAll(p.Index)) && p.Slice == nil && p.Repl == nil && p.Exp == nil
	}
	if p.Slice != nil && (!w.number(p.Slice.Offset) || !w.number(p.Slice.Length)) {
		return false
	}
	if p.Exp == nil {
		return true
	}
	switch p.Exp.Op {
	case syntax.AlternateUnset, syntax.AlternateUnsetOrNull, syntax.DefaultUnset, syntax.DefaultUnsetOrNull, syntax.ErrorUnset, syntax.ErrorUnsetOrNull,
		syntax.RemSmallSuffix, syntax.RemLargeSuffix, syntax.RemSmallPrefix, syntax.RemLargePrefix,
		syntax.UpperFirst, syntax.UpperAll, syntax.LowerFirst, syntax.LowerAll:
		return true
	case syntax.AssignUnset, syntax.AssignUnsetOrNull:
		return w.assigns(p.Param.Value, p.Exp.Word)
	case syntax.OtherParamOps:
		return p.Exp.Word != nil && isIn("Q E U u L", w.wordOf(p.Exp.Word))
	default:
		return false
	}
}

// comparison reports whether a test of two values evaluates neither.
func (w *walker) comparison(test *syntax.BinaryTest) bool {
	switch test.Op {
	case syntax.TsReMatch, syntax.TsNewer, syntax.TsOlder, syntax.TsDevIno, syntax.TsMatchShort, syntax.TsMatch, syntax.TsNoMatch,
		syntax.TsBefore, syntax.TsAfter, syntax.AndTest, syntax.OrTest:
		return true
	default: // -eq and its like are arithmetic
		x, isX := test.X.(*syntax.Word)
		y, isY := test.Y.(*syntax.Word)
		return isX && isY && w.number(x) && w.number(y)
	}
}

// assign reports whether an assignment stores a value as it is.
func (w *walker) assign(a *syntax.Assign) bool {
	if a.Name == nil { // an option of declare, judged there
		return true
	}
	if a.Index != nil && !w.number(a.Index) {
		return false
	}
	return a.Naked || !Evaluated(a.Name.Value) || a.Array == nil && a.Value != nil && w.number(a.Value)
}

// assigns notes that syntax sets a variable, and reports whether its value is not evaluated; a nil
// value is any.
func (w *walker) assigns(name string, value *syntax.Word) bool {
	w.script.Assigned = append(w.script.Assigned, name)
	return !Evaluated(name) || value != nil && w.number(value)
}

// declares reports whether declare, export and their like set values as they are.
func (w *walker) declares(node *syntax.DeclClause) bool {
	array := false
	for _, a := range node.Args {
		if a.Name != nil {
			continue
		}
		option := w.wordOf(a.Value)
		if !option.Known || len(option.Text) < 2 || strings.Trim(option.Text[1:], "aAfFgprtxul") != "" || !strings.ContainsAny(option.Text[:1], "-+") {
			return false // -i evaluates values, -n names; a name that is not known may have a subscript
		}
		array = array || strings.ContainsAny(option.Text, "aA")
	}
	for _, a := range node.Args {
		if a.Name != nil {
			w.script.Assigned = append(w.script.Assigned, a.Name.Value)
		}
		if a.Name == nil || a.Value == nil || !array && !w.arrays[a.Name.Value] {
			continue
		}
		if value := w.wordOf(a.Value); !value.Known || strings.HasPrefix(strings.TrimSpace(value.Text), "(") {
			return false // a text in parentheses is evaluated as a list
		}
	}
	return node.Variant.Value != "nameref"
}

// Evaluated reports whether bash evaluates the value of a variable as code, or finds programs by it
// whatever a command is called. A number there is harmless.
func Evaluated(name string) bool {
	switch name {
	case "ENV", "SHELLOPTS", "PS0", "PS1", "PS2", "PS4", "PROMPT_COMMAND", "MAILPATH",
		"OPTIND", "RANDOM", "SRANDOM", "HISTCMD", "SECONDS", "LINENO", "EPOCHSECONDS", "EPOCHREALTIME",
		"DIRSTACK", "PIPESTATUS", "GROUPS", "FUNCNAME", "COPROC":
		return true
	default:
		return strings.HasPrefix(name, "BASH") || strings.HasPrefix(name, "COMP_") || strings.HasPrefix(name, "READLINE_")
	}
}

func isName(text string) bool { return syntax.ValidName(text) }

// isAll reports whether an index stands for all of an array.
func isAll(index syntax.ArithmExpr) bool {
	word, is := index.(*syntax.Word)
	return is && (word.Lit() == "@" || word.Lit() == "*")
}
