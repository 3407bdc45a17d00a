package shell

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// parser reads the text of one script from left to right.
type parser struct {
	*reader

	text      string
	pos       int
	depth     int        // scripts around it
	documents []document // here documents whose text begins on the next line
}

// document is a here document that has not been read yet.
type document struct {
	end     string
	literal bool // the text is not expanded
}

// control matches characters that shells treat in different ways.
var control = regexp.MustCompile(`[\x00-\x08\x0b-\x1f\x7f]`)

// checkCharacters refuses control characters, and bytes that another character set than UTF-8 may
// read as part of a character.
func checkCharacters(script string) error {
	if !utf8.ValidString(script) {
		return errors.New("the script cannot be read: it is not UTF-8")
	}
	if at := control.FindStringIndex(script); at != nil {
		return fmt.Errorf("the script cannot be read: line %d has the control character %q; end lines with a line feed alone", line(script, at[0]), script[at[0]])
	}
	return nil
}

func line(text string, pos int) int { return 1 + strings.Count(text[:pos], "\n") }

// ErrSyntax is the error of a script with syntax that is not understood, or of no shell script.
var ErrSyntax = errors.New("is not understood")

// fail is the error that says what was not understood here.
func (p *parser) fail(format string, args ...any) error {
	return fmt.Errorf("line %d %w: %s", line(p.text, min(p.pos, len(p.text))), ErrSyntax, fmt.Sprintf(format, args...))
}

// at returns the character at an offset from here, 0 at the end.
func (p *parser) at(offset int) byte {
	if p.pos+offset >= len(p.text) {
		return 0
	}
	return p.text[p.pos+offset]
}

// is reports whether the next character is one of a set; the end is not.
func (p *parser) is(set string) bool {
	return p.pos < len(p.text) && strings.IndexByte(set, p.text[p.pos]) >= 0
}

// find returns what a pattern, which begins with ^, finds here; "" when it finds nothing.
func (p *parser) find(pattern *regexp.Regexp) string { return pattern.FindString(p.text[p.pos:]) }

// The tokens between words, and those that are no words.
var (
	blank      = regexp.MustCompile(`^([ \t]+(\\\n)?)+`)
	comment    = regexp.MustCompile(`^#[^\n]*`)
	elsewhere  = regexp.MustCompile(`^(\|&|&>|\(\()`) // bash and other shells differ
	assignment = regexp.MustCompile(`^([a-zA-Z_][a-zA-Z0-9_]*)(\+?)=`)
	loop       = regexp.MustCompile(`^[ \t]+([a-zA-Z_][a-zA-Z0-9_]*)[ \t]+in([ \t]|;)`)
	redirected = regexp.MustCompile(`^([0-9]*)(<<|<|>>|>\||>&|>)`)
	descriptor = regexp.MustCompile(`^([0-9]|-)([ \t\n;&|)]|$)`)
	delimiter  = regexp.MustCompile(`^('[a-zA-Z0-9_]+'|"[a-zA-Z0-9_]+"|[a-zA-Z0-9_]+)([ \t\n;&|)<>]|$)`)
)

// list reads all commands. What stands between them is the same in lists, pipes and groups.
func (p *parser) list() error {
	for {
		err := p.blanks()
		switch {
		case err != nil:
		case p.pos == len(p.text) && len(p.documents) == 0:
			return nil
		case p.pos == len(p.text):
			return p.fail("a here document has no text")
		case p.find(elsewhere) != "":
			return p.fail("%s; write > file 2>&1 for &>, and 2>&1 | for |&", p.find(elsewhere))
		case p.at(0) == '\n':
			p.pos++
			err = p.readDocuments()
		case p.is(";&|()"):
			p.hasInput = p.hasInput || p.at(0) == '|'
			p.pos++
		default:
			err = p.command()
		}
		if err != nil {
			return err
		}
	}
}

// blanks skips blanks, comments and the ends of lines that a backslash continues.
func (p *parser) blanks() error {
	skipped := p.find(blank)
	p.pos += len(skipped)
	note := p.find(comment)
	if strings.HasSuffix(note, `\`) || len(p.documents) > 0 && strings.Contains(skipped, "\n") {
		return p.fail("a backslash at the end of a comment, or of a line before a here document")
	}
	p.pos += len(note)
	return nil
}

// command reads a simple command, or a reserved word of a compound command.
func (p *parser) command() error {
	found := Command{}
	if err := p.simple(&found); err != nil {
		if len(found.Words) > 0 && found.Words[0].Known && len(p.script.Commands) < MaxCommands { // it counts up to there
			found.Words = append(found.Words, Word{Text: "...", Many: true})
			p.script.Commands = append(p.script.Commands, found)
		}
		return err
	}
	if len(found.Words) == 0 {
		p.script.Assigned = append(p.script.Assigned, found.Assigned...)
		return nil
	}
	return p.reader.command(found, p.depth)
}

// simple reads the words and assignments of a command. It has none behind a reserved word.
func (p *parser) simple(c *Command) error {
	for first := true; ; first = false {
		if err := p.blanks(); err != nil {
			return err
		}
		if p.pos == len(p.text) || p.is("\n;&|)") {
			return nil
		}
		if p.is("<>0123456789") && p.find(redirected) != "" {
			if err := p.redirect(); err != nil {
				return err
			}
			continue
		}
		var set []string
		if len(c.Words) == 0 {
			set = assignment.FindStringSubmatch(p.text[p.pos:])
		}
		if set != nil {
			if set[2] != "" || Evaluated(set[1]) {
				return p.fail("%s: write x=$x... for x+=; and of some variables the shell may evaluate the value as code", set[0])
			}
			p.pos += len(set[0])
			if _, err := p.word(); err != nil {
				return err
			}
			c.Assigned = append(c.Assigned, set[1])
			continue
		}
		start := p.pos
		word, err := p.word()
		if err != nil {
			return err
		}
		if first && word.Text == p.text[start:p.pos] {
			if is, err := p.reserved(word.Text); is || err != nil {
				return err
			}
		}
		c.Words = append(c.Words, word)
	}
}

// reserved reports whether an unquoted first word is a reserved word, behind which another command
// begins.
func (p *parser) reserved(word string) (is bool, err error) {
	switch word {
	case "if", "then", "elif", "else", "fi", "while", "until", "do", "done", "{", "}", "!":
		return true, nil
	case "time": // a program in some shells, with options of its own
		if err := p.blanks(); err != nil || !p.is(`-'"\`) {
			return true, err
		}
		return true, p.fail("options of time, or quotes behind it")
	case "for":
		found := loop.FindStringSubmatch(p.text[p.pos:])
		if found == nil || Evaluated(found[1]) {
			return true, p.fail("a for other than: for name in words")
		}
		p.script.Assigned = append(p.script.Assigned, found[1])
		p.pos += len(found[0]) - 1
		for start := -1; err == nil && p.pos > start; { // up to where no word begins
			start = p.pos
			if _, err = p.word(); err == nil {
				err = p.blanks()
			}
		}
		return true, err
	case "case", "esac", "select", "function", "coproc", "[[":
		return true, p.fail("%s", word)
	default:
		return false, nil
	}
}

// redirect reads a redirection.
func (p *parser) redirect() error {
	found := redirected.FindStringSubmatch(p.text[p.pos:])
	fd, to := found[1], found[2]
	p.pos += len(found[0])
	switch {
	case len(fd) > 1, p.is("<>&|("), to[0] == '<' && fd != "" && fd != "0":
		return p.fail("the redirection %s%c", found[0], p.at(0))
	case to == ">&":
		if p.find(descriptor) == "" {
			return p.fail("a file behind >&; write > file 2>&1")
		}
		p.pos++
		return nil
	case to[0] == '<':
		p.hasInput = true
	}
	if err := p.blanks(); err != nil {
		return err
	}
	if to != "<<" {
		_, err := p.word()
		return err
	}
	end := delimiter.FindStringSubmatch(p.text[p.pos:])
	if end == nil {
		return p.fail("a here document ends with a name of letters and digits")
	}
	p.pos += len(end[1])
	name := strings.Trim(end[1], `'"`)
	p.documents = append(p.documents, document{end: name, literal: name != end[1]})
	return nil
}

// readDocuments reads the here documents that begin on this line.
func (p *parser) readDocuments() error {
	for _, doc := range p.documents {
		for {
			if p.pos == len(p.text) {
				return p.fail("the here document has no line %s", doc.end)
			}
			text, _, _ := strings.Cut(p.text[p.pos:], "\n")
			p.pos = min(p.pos+len(text)+1, len(p.text))
			if text == doc.end {
				break
			}
			if !doc.literal && strings.ContainsAny(text, "$`\\") {
				return p.fail("quote the end of the here document, as in <<'%s', when its text has $, ` or \\", doc.end)
			}
		}
	}
	p.documents = nil
	return nil
}

// The pieces of a word outside of single quotes.
var (
	literal  = regexp.MustCompile(`^[a-zA-Z0-9_./:,+@%^={}!#\]-]+`)
	variable = regexp.MustCompile(`^\$([a-zA-Z_][a-zA-Z0-9_]*|[0-9@*#?$!-]|\{([a-zA-Z_][a-zA-Z0-9_]*|[0-9@*#?$!-])\})`)
	number   = regexp.MustCompile(`^\$\{?[#?$]\}?$`)
)

// word reads a word; it is empty, and nothing is read, where none begins.
func (p *parser) word() (Word, error) {
	start, brace := p.pos, false
	var text strings.Builder
	word := Word{Known: true}
	for p.pos < len(p.text) && !p.is(" \t\n;&|)<>") {
		switch piece, c := p.find(literal), p.at(0); {
		case piece != "":
			if brace = brace || strings.Contains(piece, "{"); brace && strings.ContainsAny(piece, ",.") {
				word.Known, word.Many = false, true
			}
			text.WriteString(piece)
			p.pos += len(piece)
		case c == '\'':
			quoted, _, ends := strings.Cut(p.text[p.pos+1:], "'")
			if !ends || len(p.documents) > 0 && strings.Contains(quoted, "\n") {
				return word, p.fail("a quote has no end on this line")
			}
			text.WriteString(quoted)
			p.pos += len(quoted) + 2
		case c == '"':
			if err := p.quoted(&word, &text); err != nil {
				return word, err
			}
		case c == '\\' && p.at(1) >= ' ' && p.at(1) < 0x80:
			text.WriteByte(p.at(1))
			p.pos += 2
		case c == '*', c == '?', c == '[', c == '~':
			word.Known, word.Many = false, word.Many || c != '~'
			p.pos++
		case c == '$', c == '`':
			found := p.find(variable)
			if found == "" {
				return word, p.dollar()
			}
			word.Known, word.Many = false, word.Many || !number.MatchString(found)
			p.pos += len(found)
		default:
			return word, p.fail("%q in a word without quotes", []rune(p.text[p.pos:min(p.pos+utf8.UTFMax, len(p.text))])[0])
		}
	}
	written := p.text[start:p.pos]
	if p.is("<>") && strings.HasSuffix(written, "}") {
		return word, p.fail("a redirection behind a brace")
	}
	if word.Text = text.String(); !word.Known {
		word.Text = written
	}
	if written == "[" { // the program, not a glob
		word = Word{Text: "[", Known: true}
	}
	return word, nil
}

// quoted reads text in double quotes.
func (p *parser) quoted(word *Word, text *strings.Builder) error {
	for p.pos++; p.pos < len(p.text); {
		c, next := p.at(0), p.at(1)
		found := p.find(variable)
		switch {
		case c == '"':
			p.pos++
			return nil
		case found != "":
			word.Known, word.Many = false, word.Many || strings.Contains(found, "@")
			p.pos += len(found)
			continue
		case c == '$' && (next == 0 || strings.IndexByte("\" |/),.:;%^", next) < 0), c == '`':
			return p.dollar()
		case c == '\\' && (next == '\n' || p.text[p.pos-1] >= 0x80), c == '\n' && len(p.documents) > 0:
			return p.fail("in double quotes, the end of a line behind a backslash or before a here document, or a backslash behind text that is not ASCII")
		case c == '\\' && next != 0 && strings.IndexByte("$`\"\\", next) >= 0:
			p.pos++
			c = next
		}
		text.WriteByte(c)
		p.pos++
	}
	return p.fail("a quote has no end")
}

// dollar is the error of an expansion other than $name and ${name}.
func (p *parser) dollar() error {
	if p.at(0) == '`' || p.at(1) == '(' {
		return p.fail("commands and arithmetic in words, as in $(...); run the command by itself, and use its output in the next call")
	}
	return p.fail("only $name and ${name}; put single quotes around other text with a dollar sign")
}
