package webui

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/access"
	"github.com/toolfleet/toolfleet/internal/access/browsers"
)

// cookieName is the name of the cookie of a browser that is signed in. Browsers send cookies of a
// host to each of its ports, so it has the port.
func (u *ui) cookieName(r *http.Request) string {
	name := "toolfleet"
	if _, port, has := strings.Cut(strings.TrimPrefix(r.Host[max(strings.LastIndex(r.Host, "]"), 0):], "]"), ":"); has {
		name += "-" + port
	}
	if u.Secure {
		return "__Host-" + name
	}
	return name
}

// cookie is what a browser that is signed in sends; "" if it is not.
func (u *ui) cookie(r *http.Request) string {
	cookie, err := r.Cookie(u.cookieName(r))
	if err != nil {
		return ""
	}
	return cookie.Value
}

// setCookie has the browser send a cookie from now on, which scripts cannot read.
func (u *ui) setCookie(w http.ResponseWriter, r *http.Request, value string, life time.Duration) {
	http.SetCookie(w, &http.Cookie{ //nolint:gosec // Secure wherever browsers come over TLS
		Name: u.cookieName(r), Value: value, Path: "/", MaxAge: int(life.Seconds()),
		HttpOnly: true, Secure: u.Secure, SameSite: http.SameSiteStrictMode,
	})
}

// remember signs a browser in with a token.
func (u *ui) remember(w http.ResponseWriter, r *http.Request, bearer string) error {
	from := r
	if u.AnyHost {
		from = nil // the connection is of a proxy, and the next one may be of another
	}
	value, err := u.Browsers.SignIn(from, bearer)
	if err == nil {
		u.setCookie(w, r, value, browsers.Life)
	}
	return err
}

// signInPage asks for a token.
func (u *ui) signInPage(w http.ResponseWriter, r *http.Request) {
	u.show(w, r, http.StatusOK, "sign-in", view{Title: "Sign in", Data: signInView{To: inside(r.URL.Query().Get("to"))}})
}

// signInView is what the page shows that asks for a token.
type signInView struct {
	To    string
	Fault string
}

// signIn remembers a token that is known.
func (u *ui) signIn(w http.ResponseWriter, r *http.Request) {
	bearer, to := strings.TrimSpace(r.PostFormValue("token")), inside(r.PostFormValue("to"))
	if u.Access != nil {
		if _, err := u.Access.Verify(r.Context(), bearer); err != nil {
			u.show(w, r, http.StatusUnauthorized, "sign-in", view{Title: "Sign in", Data: signInView{to, err.Error()}})
			return
		}
	}
	if err := u.remember(w, r, bearer); err != nil {
		u.show(w, r, http.StatusUnprocessableEntity, "sign-in", view{Title: "Sign in", Data: signInView{to, err.Error()}})
		return
	}
	u.redirect(w, r, to)
}

// signOut ends what the browser sends, and each copy of it.
func (u *ui) signOut(w http.ResponseWriter, r *http.Request) {
	if !u.formIsOurs(r) {
		u.refuse(w, http.StatusForbidden, "the form is of another sign-in: load the page again")
		return
	}
	if browser, err := u.Browsers.Open(r, u.cookie(r)); err == nil {
		ctx, cancel := within(context.WithoutCancel(r.Context())) // it ends the requests of the browser
		defer cancel()
		if err := u.Browsers.SignOut(ctx, browser); err != nil {
			u.refuse(w, http.StatusServiceUnavailable, "you are not signed out: "+err.Error())
			return
		}
	}
	u.setCookie(w, r, "", -time.Second)
	u.redirect(w, r, "/sign-in")
}

// openCode signs in by a code. Where other users of this machine may see the address with the code,
// as an argument of the program that opens it, the connection has to be of this process's user.
func (u *ui) openCode(w http.ResponseWriter, r *http.Request) {
	if user, known := access.UserOf(r); access.KnowsUsers && (!known || user != 0 && user != uint64(os.Getuid())) { //nolint:gosec // a user
		reason := "the address is for another user of this machine"
		if !known {
			reason = "this system does not say whose the connection is: sign in with the token, whose file the command names"
		}
		u.refuse(w, http.StatusForbidden, reason)
		return
	}
	bearer, is := u.codes.take(r.URL.Query().Get("code"))
	if !is {
		u.show(w, r, http.StatusUnauthorized, "sign-in", view{Title: "Sign in", Data: signInView{To: "/", Fault: "The address was used before, or is older than a minute."}})
		return
	}
	if err := u.remember(w, r, bearer); err != nil {
		u.refuse(w, http.StatusUnprocessableEntity, err.Error())
		return
	}
	// A browser that was led here from elsewhere sends the cookie from the next page on.
	u.show(w, r, http.StatusOK, "opened", view{Title: "Signed in"})
}

// inside is a path of these pages; "/" for an address that leads elsewhere. Browsers take \ for /,
// and leave tabs and line ends out.
func inside(to string) string {
	strange := func(r rune) bool { return r <= ' ' || r == '\\' || r >= 0x7f }
	if !strings.HasPrefix(to, "/") || strings.HasPrefix(to, "//") || strings.ContainsFunc(to, strange) {
		return "/"
	}
	return to
}

// formKey proves that a form is of a page that this browser has loaded since it was signed in.
func (u *ui) formKey(r *http.Request) string {
	mac := hmac.New(sha256.New, []byte(u.cookie(r)))
	mac.Write([]byte("toolfleet form"))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:16])
}

// formIsOurs reports whether a form has its key. Without tokens there is no sign-in that another
// page could use: the origin decides.
func (u *ui) formIsOurs(r *http.Request) bool {
	return u.Access == nil || hmac.Equal([]byte(r.PostFormValue("key")), []byte(u.formKey(r)))
}

// codeLife is how long a code is good for.
const codeLife = time.Minute

// codes sign a browser in, each one once. How long it takes to look for one says nothing about it.
type codes struct {
	mu    sync.Mutex
	known map[access.Digest]signing
}

// signing is what a code stands for.
type signing struct {
	bearer string
	until  time.Time
}

func (c *codes) add(bearer string) string {
	code := rand.Text()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil {
		c.known = map[access.Digest]signing{}
	}
	for other, s := range c.known {
		if time.Now().After(s.until) {
			delete(c.known, other)
		}
	}
	c.known[access.DigestOf(code)] = signing{bearer, time.Now().Add(codeLife)}
	return code
}

func (c *codes) take(code string) (bearer string, is bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	digest := access.DigestOf(code)
	s, is := c.known[digest]
	delete(c.known, digest)
	return s.bearer, is && time.Now().Before(s.until)
}
