package webui

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"html/template"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/system/moment"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// view is what every page shows, with its own part in Data.
type view struct {
	Title   string
	Section string // of the list of pages
	Path    []crumb
	Data    any

	Fleet   protocol.Fleet
	Version string
	Who     string // "" without sign-in
	Key     string // of forms
	Now     time.Time
	NoTurns bool // no model is served here
}

// crumb is a page above the one that is shown.
type crumb struct{ Name, To string }

// toPage is an entry of the list of pages.
type toPage struct {
	To, Name string
	On       bool
}

// parsed are the templates, each with the frame of all pages.
func parsed(base string) map[string]*template.Template {
	frame := template.Must(template.New("").Funcs(functions(base)).ParseFS(files, "templates/frame/*.html"))
	pages := map[string]*template.Template{}
	names, _ := fs.Glob(files, "templates/*.html")
	for _, name := range names {
		clone := template.Must(frame.Clone())
		pages[strings.TrimSuffix(path.Base(name), ".html")] = template.Must(clone.ParseFS(files, name))
	}
	return pages
}

// show writes a page; a part of it, if that is what the browser asks for.
func (u *ui) show(w http.ResponseWriter, r *http.Request, status int, name string, v view) {
	block := "page"
	if part := r.Header.Get("HX-Target"); r.Header.Get("HX-Request-Type") == "partial" && strings.HasPrefix(part, "main#") {
		block = "main"
	}
	u.write(w, r, status, name, block, v)
}

// write writes a block of a page.
func (u *ui) write(w http.ResponseWriter, r *http.Request, status int, name, block string, v view) {
	body, err := u.render(r, name, block, v)
	if err != nil {
		u.Logger.ErrorContext(r.Context(), "page cannot be made", slog.String("page", name), slog.Any("error", err))
		http.Error(w, "the page cannot be made", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(body) //nolint:gosec // made by html/template; an error says that the browser has gone
}

// render makes a block of a page.
func (u *ui) render(r *http.Request, name, block string, v view) ([]byte, error) {
	v.Fleet, v.Version, v.Now, v.Key, v.NoTurns = u.Fleet, u.Version, time.Now(), u.formKey(r), u.NoTurns
	if u.Access != nil {
		v.Who = judge.Of(r.Context()).String()
	}
	var out bytes.Buffer
	err := u.pages[name].ExecuteTemplate(&out, block, v)
	return harmless(out.Bytes()), err
}

// functions are those of templates.
func functions(base string) template.FuncMap {
	return template.FuncMap{
		"base": func() string { return base },
		"ago":  ago, "span": terminal.Duration, "took": terminal.Millis, "millis": func(ms *float64) string {
			if ms == nil {
				return ""
			}
			return terminal.Millis(*ms)
		},
		"at":       func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
		"clock":    func(t time.Time) string { return t.Local().Format("15:04:05") },
		"cost":     cost,
		"count":    func(n any) string { return grouped(fmt.Sprint(n)) },
		"plural":   terminal.Plural,
		"bytes":    size,
		"upload":   func() string { return size(maxUpload) },
		"about":    about,
		"state":    stateOf,
		"ansi":     ansi,
		"diff":     diffOf,
		"args":     pretty,
		"plain":    cut,
		"line":     firstLine,
		"ms":       func(ms int64) string { return terminal.Millis(float64(ms)) },
		"part":     func(data any) view { return view{Data: data} },
		"lanePath": lanePath, "workerPath": workerPath, "limitPath": limitPath, "lookPath": lookPath, "callPath": callPath, "sessionPath": sessionPath,
		"lanesPath": lanesPath, "logPath": logPath, "laneAt": laneAt, "reason": reasonOf, "waitPill": pillOfWait,
		"first":  func(paths []string) []string { return paths[:min(len(paths), maxFiles)] },
		"beyond": func(paths []string) int { return max(0, len(paths)-maxFiles) },
		"ask":    ask, "uses": usesOf, "near": nearly, "perSecond": perSecond, "waited": waited, "endOf": endOf, "waitsOf": waitsOf,
		"poolOf":  func(lane string) protocol.Pool { pool, _, _ := strings.Cut(lane, "/"); return protocol.Pool(pool) },
		"add":     func(a, b int) int { return a + b },
		"picture": func(kind string) bool { return slices.Contains(pictures(), kind) },
		"share":   func(ms, of float64) int { return int(min(max(ms*1000/max(of, 1), 0), 1000)) },
		"choices": moment.Sinces,
		"link":    func(to, name, section, on string) toPage { return toPage{to, name, section == on} },
	}
}

// ago says how long a time has passed.
func ago(t time.Time) string {
	switch {
	case t.IsZero():
		return ""
	case time.Since(t) < time.Second:
		return "now"
	default:
		return terminal.Ago(t) + " ago"
	}
}

// cost is an amount of US dollars; "" if it is not known.
func cost(usd *float64) string {
	switch {
	case usd == nil:
		return ""
	case *usd > 0 && *usd < 0.01:
		return fmt.Sprintf("$%.4f", *usd)
	default:
		return fmt.Sprintf("$%.2f", *usd)
	}
}

// grouped writes a number with separators of thousands.
func grouped(digits string) string {
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// size is a number of bytes.
func size(n any) string {
	var of float64
	_, _ = fmt.Sscan(fmt.Sprint(n), &of)
	for _, unit := range []string{"B", "KiB", "MiB"} {
		if of < 1024 {
			return strings.TrimSuffix(fmt.Sprintf("%.1f", of), ".0") + " " + unit
		}
		of /= 1024
	}
	return fmt.Sprintf("%.1f GiB", of)
}

// about says in a line what a call does.
func about(tool, arguments string) string {
	if text := terminal.About(tool, arguments); text != "" {
		return text
	}
	return tool
}

// pretty is JSON with a line for each value; other texts stay as they are.
func pretty(text string) string {
	var out bytes.Buffer
	if json.Indent(&out, []byte(text), "", "  ") != nil {
		return text
	}
	return out.String()
}

// folded is a text whose middle is left out.
type folded struct {
	Head, Tail string
	Lines      int // that are left out
	Bytes      int // of long lines that are left out
}

// Cut reports whether a text is shown in part.
func (f folded) Cut() bool { return f.Lines > 0 || f.Bytes > 0 }

// fold leaves out the middle of a text of more than some lines, and the ends of long lines.
func fold(text string) (f folded) {
	const head, tail = 12, 6
	text = strings.TrimRight(text, "\n")
	f.Head = text
	if n := strings.Count(text, "\n") + 1; n > head+tail+2 {
		f.Lines = n - head - tail
		at := 0
		for range head {
			at += strings.IndexByte(text[at:], '\n') + 1
		}
		end := len(text)
		for range tail {
			end = strings.LastIndexByte(text[:end], '\n')
		}
		f.Head, f.Tail = text[:at-1], text[end+1:]
	}
	f.Head, f.Tail = f.short(f.Head), f.short(f.Tail)
	return f
}

// short is a text with the beginnings of its lines.
func (f *folded) short(text string) string {
	const most = 1 << 10
	var out strings.Builder
	for line := range strings.Lines(text) {
		if rest := len(line) - most; rest > 0 {
			f.Bytes += rest
			line = strings.ToValidUTF8(line[:most], "") + " …\n"
		}
		out.WriteString(line)
	}
	return out.String()
}

// perSecond is a rate; "–" if it is not known yet.
func perSecond(rate *float64) string {
	switch {
	case rate == nil:
		return "–"
	case *rate == 0 || *rate >= 10:
		return grouped(fmt.Sprintf("%.0f", *rate))
	default:
		return fmt.Sprintf("%.1f", *rate)
	}
}

// question is an act that is asked about before it is done.
type question struct {
	To, ID, Word, Class, Text string
	Values                    []field
	Sure                      string // what a person has to agree to
	Key                       string
}

// field is a hidden field of a form.
type field struct{ Name, Value string }

// ask is a button that asks before it does something. Values are names and values of the form.
func ask(key, to, word, class, text string, values ...any) question {
	q := question{To: to, Word: word, Class: class, Text: text, Key: key}
	id := fnv.New64a()
	_, _ = io.WriteString(id, to)
	for i := 0; i+1 < len(values); i += 2 {
		f := field{fmt.Sprint(values[i]), fmt.Sprint(values[i+1])}
		_, _ = io.WriteString(id, "\x00"+f.Name+"\x00"+f.Value)
		q.Values = append(q.Values, f)
	}
	q.ID = fmt.Sprintf("ask-%x", id.Sum64())
	return q
}

// pill is a word for a state, with the class of its colour.
type pill struct{ Class, Word string }

// stateOf is the pill of a state, an outcome or a status.
func stateOf(state any) pill {
	text := fmt.Sprint(state)
	class := report.ClassOf(text)
	switch class {
	case report.StateClassStop:
		class = report.StateClassWait
	case report.StateClassPlain:
		class = "plain"
	default:
	}
	return pill{string(class), report.StateWords(text)}
}

// firstLine is the first line of a text, cut.
func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	if len(line) > 400 {
		line = strings.ToValidUTF8(line[:400], "")
	}
	if runes := []rune(line); len(runes) > 80 {
		line = string(runes[:79]) + "…"
	}
	return line
}
