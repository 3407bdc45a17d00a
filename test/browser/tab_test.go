//go:build linux

package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

// patience bounds what a test waits for, unless TOOLFLEET_PATIENCE says otherwise.
var patience = func() time.Duration {
	if set, err := time.ParseDuration(os.Getenv("TOOLFLEET_PATIENCE")); err == nil {
		return set
	}
	return time.Minute
}()

// openBrowser starts a Chromium for all tests; without one they are skipped.
func openBrowser(t *testing.T) context.Context {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium-headless-shell", "chromium", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		unavailable(t, "no Chromium is installed: apt-get install chromium-headless-shell")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.UserDataDir(t.TempDir()))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(end)
	browser, end := chromedp.NewContext(allocator)
	t.Cleanup(end)
	require.NoError(t, chromedp.Do(browser))
	return browser
}

// unavailable ends a test that this machine cannot run: it is skipped, loudly, or fails with
// TOOLFLEET_INTEGRATION=required.
func unavailable(t *testing.T, reason string) {
	t.Helper()
	if os.Getenv("TOOLFLEET_INTEGRATION") == "required" {
		t.Fatalf("TOOLFLEET_INTEGRATION=required, but %s", reason)
	}
	fmt.Fprintf(os.Stderr, "\n*** %s SKIPPED: %s ***\n\n", t.Name(), reason)
	t.Skip(reason)
}

// tab is a page that is open in the browser, as a person without other tabs has it.
type tab struct {
	t    *testing.T
	ctx  context.Context //nolint:containedctx // chromedp's handle of the tab
	base string          // of the pages, such as http://127.0.0.1:7070/ui

	mu      sync.Mutex
	faults  []string
	clicked int
}

// watching is evaluated before each page: what moves up or down in the window, without a key or a
// click, is counted.
const watching = `window.shifts = [];
new PerformanceObserver((list) => { for (const e of list.getEntries()) {
	const moved = e.sources.filter((s) => Math.abs(s.previousRect.top - s.currentRect.top) >= 1 && s.currentRect.height > 0);
	if (moved.length && !e.hadRecentInput) window.shifts.push(moved.map((s) => (s.node?.id || s.node?.className || s.node?.textContent?.slice(0, 40) || s.node?.nodeName || "") + " from " + Math.round(s.previousRect.top) + " to " + Math.round(s.currentRect.top)).join(", "));
} }).observe({ type: "layout-shift", buffered: true });`

// newTab opens a tab with cookies of its own.
func newTab(t *testing.T, browser context.Context, base string) *tab {
	t.Helper()
	here, err := url.Parse(base)
	require.NoError(t, err)
	tb := &tab{t: t, base: base}
	ctx, end := chromedp.NewContext(browser, chromedp.WithNewBrowserContext(), chromedp.WithListener(func(event any) { tb.observe(event, here.Host) }))
	tb.ctx = ctx
	require.NoError(t, chromedp.Do(ctx))
	send(tb, network.Enable, network.EnableParams{})
	send(tb, log.Enable, cdp.Empty{})
	send(tb, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: watching})
	tb.looks("light", 1280, 900)
	t.Cleanup(func() {
		end()
		tb.harmless()
	})
	return tb
}

// send sends a command of the protocol to the browser.
func send[P, R any](tb *tab, command cdp.Command[P, R], params P) (result R) {
	tb.t.Helper()
	ctx, end := context.WithTimeout(tb.ctx, patience)
	defer end()
	result, err := chromedp.Run(ctx, func(ctx context.Context, t *chromedp.Target) (R, error) { return cdp.Call(ctx, t, command, params) })
	require.NoError(tb.t, err)
	return result
}

// observe keeps what no page may do.
func (tb *tab) observe(event any, host string) {
	fault := ""
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		fault = fmt.Sprintf("exception: %s %+v", e.ExceptionDetails.Text, e.ExceptionDetails.Exception)
	case *runtime.EventConsoleAPICalled:
		if e.Type == "error" || e.Type == "warning" {
			fault = "console:"
			for _, a := range e.Args {
				fault += " " + string(a.Value) + a.Description
			}
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Source == log.EntrySourceSecurity {
			fault = fmt.Sprintf("log: %s: %s (%s)", e.Entry.Source, e.Entry.Text, e.Entry.URL)
		}
	case *page.EventJavascriptDialogOpening:
		fault = "dialog: " + e.Message
		go func() { // what observes must not wait
			_, _ = chromedp.Run(tb.ctx, func(ctx context.Context, t *chromedp.Target) (cdp.Empty, error) {
				return cdp.Call(ctx, t, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{})
			})
		}()
	case *network.EventRequestWillBeSent:
		if to, err := url.Parse(e.Request.URL); err != nil || to.Scheme != "data" && to.Host != host {
			fault = "request to another host: " + e.Request.URL
		}
	}
	if fault != "" {
		tb.mu.Lock()
		tb.faults = append(tb.faults, fault)
		tb.mu.Unlock()
	}
}

// harmless requires that nothing was observed that no page may do, except for what an expected
// text is in.
func (tb *tab) harmless(expected ...string) {
	tb.t.Helper()
	tb.mu.Lock()
	defer tb.mu.Unlock()
	faults := tb.faults
	tb.faults = nil
next:
	for _, fault := range faults {
		for _, text := range expected {
			if strings.Contains(fault, text) {
				continue next
			}
		}
		tb.t.Errorf("the page does what none may: %s", fault)
	}
}

// keep writes what a failed test looked at to bin/browser.
func (tb *tab) keep() {
	dir := filepath.Join("..", "..", "bin", "browser")
	name := strings.NewReplacer("/", "-", " ", "-").Replace(tb.t.Name())
	ctx, end := context.WithTimeout(tb.ctx, 10*time.Second)
	defer end()
	picture, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	text, failed := chromedp.Run(ctx, chromedp.Evaluate[string]("location + ` ` + document.body.innerText"))
	if runes := []rune(text); len(runes) > 4000 {
		text = string(runes[:1500]) + "\n…\n" + string(runes[len(runes)-2500:])
	}
	if tb.t.Logf("the page at the end: %s %v", text, failed); err == nil && os.MkdirAll(dir, 0o755) == nil {
		_ = os.WriteFile(filepath.Join(dir, name+".png"), picture, 0o600)
	}
}

// run runs what is done with the tab.
func (tb *tab) run(actions ...chromedp.Action[chromedp.Void]) {
	tb.t.Helper()
	ctx, end := context.WithTimeout(tb.ctx, patience)
	defer end()
	require.NoError(tb.t, chromedp.Do(ctx, actions...))
}

// looks sets the colour scheme, and the size in pixels of style sheets.
func (tb *tab) looks(scheme string, width, height int64) {
	tb.t.Helper()
	send(tb, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}},
	})
	send(tb, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1})
}

// open opens a page by its address.
func (tb *tab) open(path string) {
	tb.t.Helper()
	tb.run(chromedp.Navigate(tb.base + path))
}

// opens opens a page until it shows a text.
func (tb *tab) opens(path, text string) {
	tb.t.Helper()
	for began := time.Now(); time.Since(began) < patience; time.Sleep(300 * time.Millisecond) {
		if tb.open(path); strings.Contains(tb.text(), text) {
			return
		}
	}
	tb.keep()
	require.FailNow(tb.t, path+" never shows "+text)
}

// eval returns what a script, or the promise that it makes, returns.
func eval[T any](tb *tab, script string) T {
	tb.t.Helper()
	ctx, end := context.WithTimeout(tb.ctx, patience)
	defer end()
	result, err := chromedp.Run(ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
	require.NoError(tb.t, err, "%.300s", script)
	return result
}

// text is what the page shows.
func (tb *tab) text() string {
	tb.t.Helper()
	return strings.ReplaceAll(eval[string](tb, "document.body?.innerText ?? ''"), "\u00a0", " ")
}

// at is the path of the page that is open.
func (tb *tab) at() string {
	tb.t.Helper()
	return eval[string](tb, "location.pathname + location.search")
}

// until waits until a script returns true.
func (tb *tab) until(script, what string) {
	tb.t.Helper()
	for began := time.Now(); time.Since(began) < patience; time.Sleep(50 * time.Millisecond) {
		ctx, end := context.WithTimeout(tb.ctx, patience)
		is, err := chromedp.Run(ctx, chromedp.Evaluate[bool](script))
		end()
		if err == nil && is { // while a page is left, there is none
			return
		}
	}
	tb.keep()
	require.FailNow(tb.t, "it never was so: "+what)
}

// lands waits until a page is open, with its scripts.
func (tb *tab) lands(path, what string) {
	tb.t.Helper()
	tb.until(`location.pathname.endsWith(`+quoted(path)+`) && document.readyState === "complete"`, what)
}

// leaves does what loads a page, also the same one, and waits until that is open.
func (tb *tab) leaves(act func()) {
	tb.t.Helper()
	eval[bool](tb, "window.left = true")
	act()
	tb.until(`!window.left && document.readyState === "complete"`, "a page is loaded")
}

// sees waits until the page shows each of the texts.
func (tb *tab) sees(texts ...string) {
	tb.t.Helper()
	for _, text := range texts {
		tb.until("(document.body?.innerText ?? '').replaceAll('\\u00a0', ' ').includes("+quoted(text)+")", "the page shows "+text)
	}
}

// without waits until the page does not show a text.
func (tb *tab) without(text string) {
	tb.t.Helper()
	tb.until("!(document.body?.innerText ?? "+quoted(text)+").includes("+quoted(text)+")", "the page does not show "+text)
}

func quoted(text string) string {
	body, _ := json.Marshal(text) // texts always can be
	return string(body)
}

// control is the expression of the first control that can be seen whose text, label or name is a
// text, or else begins with it, in the part of the page that a selector finds.
func control(within, text string) string {
	return `((t) => {
	const names = (e) => [e.innerText?.trim(), e.getAttribute("aria-label"), e.labels?.[0]?.innerText?.trim()];
	const all = [...document.querySelectorAll(` + quoted(within) +
		`)].flatMap((e) => [...(e.matches("a, button, select") ? [e] : []), ...e.querySelectorAll("a, button, summary, input, textarea, select, [role=button], [role=tab]")]).filter((e) => e.checkVisibility());
	return all.find((e) => names(e).includes(t)) || all.find((e) => names(e).some((n) => n?.startsWith(t)));
})(` + quoted(text) + `)`
}

// click clicks the control with a text, with the mouse; each click counts.
func (tb *tab) click(text string) { tb.t.Helper(); tb.clickIn("body", text) }

// clickIn clicks a control of a part of the page.
func (tb *tab) clickIn(within, text string) {
	tb.t.Helper()
	tb.until("!!("+control(within, text)+")", "there is a control "+text+" in "+within)
	var at struct{ X, Y float64 }
	for range 100 { // what streams may move it meanwhile
		next := eval[struct {
			X, Y float64
			Top  bool
		}](tb, `(() => { const e = `+control(within, text)+`; if (!e) return { X: -1, Y: 0, Top: false };
			e.scrollIntoView({ block: "center", behavior: "instant" }); const b = e.getClientRects()[0], x = b.x + b.width / 2, y = b.y + b.height / 2, on = document.elementFromPoint(x, y);
			return { X: x, Y: y, Top: !!on && (e.contains(on) || on.contains(e)) }; })()`)
		still := next.Top && next.X == at.X && next.Y == at.Y
		if at.X, at.Y = next.X, next.Y; still {
			break
		}
		time.Sleep(30 * time.Millisecond)
	}
	tb.clicked++
	tb.run(chromedp.MouseClickXY(at.X, at.Y))
}

// fill types a text into the field with a label.
func (tb *tab) fill(label, text string) { tb.t.Helper(); tb.fillIn("body", label, text) }

func (tb *tab) fillIn(within, label, text string) {
	tb.t.Helper()
	tb.until("!!("+control(within, label)+")", "there is a field "+label+" in "+within)
	eval[bool](tb, `(() => { const e = `+control(within, label)+`; e.focus(); e.select?.(); return true; })()`)
	send(tb, input.InsertText, input.InsertTextParams{Text: text})
}

// choose chooses an option of a list.
func (tb *tab) choose(selector, option string) {
	tb.t.Helper()
	tb.clicked++
	require.True(tb.t,
		eval[bool](tb, `(() => { const e = document.querySelector(`+quoted(selector)+`), o = [...e.options].find((o) => o.text === `+quoted(option)+`); if (!o) return false;
		e.focus(); e.value = o.value; e.dispatchEvent(new Event("input", { bubbles: true })); e.dispatchEvent(new Event("change", { bubbles: true })); return true; })()`), "%s has no %s", selector, option)
}

// press presses keys, one after the other, wherever the focus is.
func (tb *tab) press(keys ...string) {
	tb.t.Helper()
	for _, key := range keys {
		tb.run(chromedp.KeyEvent(key))
	}
}

// tabTo moves the focus by the tabulator to the control with a text.
func (tb *tab) tabTo(text string) {
	tb.t.Helper()
	for range 200 {
		tb.press(kb.Tab)
		if eval[bool](tb, `(() => { const e = document.activeElement; return !!e && e !== document.body && (e === (`+control("body", text)+
			`) || [e.innerText?.trim(), e.getAttribute("aria-label"), e.labels?.[0]?.innerText?.trim()].includes(`+quoted(text)+`)); })()`) {
			tb.outlined(text)
			return
		}
	}
	require.FailNow(tb.t, "the tabulator never comes to "+text)
}

// outlined requires that one sees where the focus is.
func (tb *tab) outlined(what string) {
	tb.t.Helper()
	seen := eval[bool](tb,
		`(() => { const s = getComputedStyle(document.activeElement); return s.outlineStyle !== "none" && parseFloat(s.outlineWidth) > 0 || s.boxShadow !== "none"; })()`)
	require.True(tb.t, seen, "one does not see that the focus is on %s", what)
}

// downloads is the file that the browser is given by an act.
func (tb *tab) downloads(act func()) string {
	tb.t.Helper()
	dir := tb.t.TempDir()
	of := chromedp.FromContext(tb.ctx).BrowserContextID
	send(tb, browser.SetDownloadBehavior, browser.SetDownloadBehaviorParams{Behavior: browser.SetDownloadBehaviorBehaviorAllow, BrowserContextID: of, DownloadPath: dir})
	act()
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		files, err := os.ReadDir(dir)
		require.NoError(tb.t, err)
		if len(files) == 1 && filepath.Ext(files[0].Name()) != ".crdownload" {
			text, err := os.ReadFile(filepath.Join(dir, files[0].Name()))
			require.NoError(tb.t, err)
			return string(text)
		}
		require.Less(tb.t, time.Since(began), patience, "nothing is downloaded")
	}
}

// signIn signs in by the page.
func (tb *tab) signIn(token string) {
	tb.t.Helper()
	tb.open("/")
	tb.fill("Token", token)
	tb.click("Sign in")
	tb.until(`!location.pathname.endsWith("/sign-in")`, "the browser is signed in")
}
