// Package judge says who may do what, on which object, through which interface. One function
// decides, [May], and it is called where an act takes effect: where a call or a turn starts, a
// record is changed, an answer of a person is accepted, a file is read.
//
//	interface ──► principal ──► [May]: act, object, owner ──► rules of the session ──► the act
//	              token, role,         [Rules]                package policy           takes effect
//	              key, tenant,         [Interfaces]           counts: loop.Ledger
//	              user, expiry         [RefusalError]         a person's answer: [Approve]
//
// An interface knows its principal: the token of a request, the key that signed a call, the NATS
// user of a process. It sets [With] in the context, and what it calls judges by [Judge]. A context
// without a principal is that of the fleet's operator, whose NATS user the server has checked.
//
// An object has an [Owner] from when it is made: a tenant and a principal, from the interface,
// never from what a model, a file or a request says. Where calls are signed, the owner is signed
// with them. A record without an owner, of an earlier version, belongs to the tenant default and to
// the operator in it. The tenant is the wall: only principals of every tenant pass it. In a tenant,
// the role says what a principal may do with what others own.
//
// The rules of a session (policy, level, roots, max_calls, budget) bind what its calls do, for
// every principal. Package loop judges them, for calls of turns and for single calls, and again
// when a session is resumed. What bound a call once never gets weaker.
//
// The judged is never the judge: who makes a call cannot approve it ([Approve] of a [Call]), and a
// tool of a session has no principal at all. An answer counts once, and is journaled with its
// giver, its time and its interface. A coordinator with a key signs nothing for a principal whose
// own calls it would refuse.
package judge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Role is what a principal may do. Each role includes those before it.
type Role string

// The roles.
const (
	RoleRead    Role = "read"    // see
	RoleRun     Role = "run"     // make and use objects, and end and change its own
	RoleOperate Role = "operate" // also approve, and end and change those of others
)

// Roles returns all roles, the least first.
func Roles() []Role { return []Role{RoleRead, RoleRun, RoleOperate} }

// ParseRole reads a role. "use" is the name that earlier versions had for run.
func ParseRole(s string) (Role, error) {
	if s == "use" {
		return RoleRun, nil
	}
	if !slices.Contains(Roles(), Role(s)) {
		return "", fmt.Errorf("role %q: must be %s, %s or %s", s, RoleRead, RoleRun, RoleOperate)
	}
	return Role(s), nil
}

// Known says how a fleet knows a principal.
type Known string

// The ways by which principals are known.
const (
	ByProcess Known = ""      // it has the NATS user of a coordinator: the operator
	ByToken   Known = "token" // by a token of a file of tokens
	ByKey     Known = "key"   // by the key that signed
)

// DefaultTenant is the tenant of those that name none.
const DefaultTenant protocol.Tenant = "default"

// Principal is who acts. The zero value is the fleet's operator.
type Principal struct {
	Known Known
	Name  string
	Role  Role // "" is [RoleOperate]
	// Tenant is the only tenant whose objects the principal reaches. With "", the operator and a
	// key reach every tenant, and others the default tenant.
	Tenant protocol.Tenant
	// Expires is when the principal may do nothing any more; zero is never.
	Expires time.Time
	// Token is the servers' name of the client's token, such as stored:ID; "" without a token.
	Token string
}

// ID is an unambiguous text of a principal: two principals are the same if, and only if, their
// names, roles and tenants are.
func (p Principal) ID() string {
	id, _ := json.Marshal([]string{p.Name, string(p.Role), string(p.Tenant)}) // texts always can be
	return string(id)
}

// By names the principal in records, such as token:ann; "" is the operator.
func (p Principal) By() string {
	if p.Known == ByProcess {
		return ""
	}
	return string(p.Known) + ":" + p.Name
}

// Owner returns the owner of what the principal makes.
func (p Principal) Owner() Owner { return Owner{cmp.Or(p.Tenant, DefaultTenant), p.By()} }

// maxName is the greatest length of the name of a principal, in bytes.
const maxName = 256

// CheckBy returns an error for what [Principal.By] is of no principal.
func CheckBy(by string) error {
	known, name, _ := strings.Cut(by, ":")
	strange := func(r rune) bool { return !unicode.IsPrint(r) || unicode.IsSpace(r) }
	if by == "" || (known == string(ByToken) || known == string(ByKey)) &&
		name != "" && len(name) <= maxName && utf8.ValidString(name) && !strings.ContainsFunc(name, strange) {
		return nil
	}
	return fmt.Errorf("by %.300q: must be empty, %s:NAME or %s:ID, with a name of 1 to %d bytes without spaces and control characters", by, ByToken, ByKey, maxName)
}

// PrincipalOf returns the principal that owns something, as far as the owner says who it is. One
// that a malformed record names is never the operator.
func PrincipalOf(owner Owner) Principal {
	who := Principal{Tenant: owner.Tenant, Role: RoleRun}
	switch known, name, _ := strings.Cut(owner.By, ":"); {
	case owner.By == "":
	case CheckBy(owner.By) != nil:
		who.Known, who.Name = "unknown", owner.By
	default:
		who.Known, who.Name = Known(known), name
	}
	return who
}

// Reach is the only tenant whose objects the principal reaches; "" is every tenant.
func (p Principal) Reach() protocol.Tenant {
	if p.Known == ByProcess || p.Known == ByKey {
		return p.Tenant
	}
	return cmp.Or(p.Tenant, DefaultTenant)
}

func (p Principal) String() string {
	name := cmp.Or(p.By(), "the operator")
	if tenant := p.Reach(); tenant != "" {
		name += " of tenant " + string(tenant)
	}
	return name
}

type contextKey struct{}

// With returns a context in which a principal acts.
func With(ctx context.Context, who Principal) context.Context {
	return context.WithValue(ctx, contextKey{}, who)
}

// Of returns the principal that acts in a context: the operator if it has none.
func Of(ctx context.Context) Principal {
	who, _ := ctx.Value(contextKey{}).(Principal)
	return who
}

// Bounded reports whether the principal of a context may not do everything. If it may, the owner of
// an object need not be read.
func Bounded(ctx context.Context) bool {
	who := Of(ctx)
	return who.Known != ByProcess || who.Reach() != "" || who.Role != "" || !who.Expires.IsZero()
}

// Owner is whom an object belongs to. The zero value is that of a record without an owner.
type Owner struct {
	Tenant protocol.Tenant `json:"tenant,omitempty"` // "" is [DefaultTenant]
	By     string          `json:"by,omitempty"`     // [Principal.By] of the maker; "" is the operator
}

// EveryTenant is the tenant of what belongs to the whole fleet.
const EveryTenant protocol.Tenant = "*"

// OwnerOf returns the owner that a journal states: the operator in the default tenant if it states
// none.
func OwnerOf(journal interface {
	Tenant() protocol.Tenant
	By() string
},
) Owner {
	return Owner{journal.Tenant(), journal.By()}
}

// TheFleet is the owner of what all tenants share, such as limits.
func TheFleet() Owner { return Owner{Tenant: EveryTenant} }

// Kind is what an object is.
type Kind string

// The kinds of objects.
const (
	Session   Kind = "session"
	Call      Kind = "call"
	Workspace Kind = "workspace"
	Schedule  Kind = "schedule"
	Trigger   Kind = "trigger"
	Template  Kind = "template"
	Channel   Kind = "channel"
	Upload    Kind = "upload"
	Limit     Kind = "limit"
	Lane      Kind = "lane" // the calls of all tenants wait in lanes
	Worker    Kind = "worker"
	Token     Kind = "token" // of a client over HTTP
	Webhook   Kind = "webhook"
)

// Object is what an act is about.
type Object struct {
	Kind  Kind
	ID    string
	Owner Owner
}

// Act is what a principal does to an object.
type Act string

// The acts.
const (
	See     Act = "see"     // list, show, follow; read results and files
	Make    Act = "make"    // begin a session, send a call, add a record
	Use     Act = "use"     // add a turn, a message or a call; fork; begin with a template
	Cancel  Act = "cancel"  // end what runs
	Change  Act = "change"  // restore, rewind, merge into, revert, resolve, pause, set
	Remove  Act = "remove"  // for good
	Approve Act = "approve" // let a call run that a policy holds back
)

// Acts lists all of them.
func Acts() []Act { return []Act{See, Make, Use, Cancel, Change, Remove, Approve} }

// Rule says which role an act needs.
type Rule struct {
	Act    Act
	Kinds  []Kind
	Own    Role // on what the principal made; "" is none
	Others Role // on what others of its tenant made
}

// Rules returns all rules. An act on a kind that no rule names is refused.
func Rules() []Rule {
	made := []Kind{Session, Call, Workspace, Schedule, Trigger, Template, Channel, Upload}
	return []Rule{
		{See, append(slices.Clone(made), Limit, Worker), RoleRead, RoleRead},
		{Make, made, RoleRun, RoleRun},
		{Use, []Kind{Session, Workspace, Template, Channel, Upload}, RoleRun, RoleRun},
		{Cancel, []Kind{Session, Call}, RoleRun, RoleOperate},
		{Change, []Kind{Session, Workspace, Schedule, Trigger, Limit, Lane}, RoleRun, RoleOperate},
		{Remove, []Kind{Session, Workspace, Schedule, Trigger, Template}, RoleRun, RoleOperate},
		{Approve, []Kind{Session}, RoleOperate, RoleOperate}, // a call that a model makes
		{Approve, []Kind{Call}, "", RoleOperate},             // a call that a principal makes itself
		{See, []Kind{Token, Webhook}, RoleOperate, RoleOperate},
		{Make, []Kind{Token, Webhook}, RoleOperate, RoleOperate}, // tokens are for the whole fleet: see [TheFleet]
		{Change, []Kind{Webhook}, RoleOperate, RoleOperate},
		{Remove, []Kind{Token, Webhook}, RoleOperate, RoleOperate},
	}
}

// ruleOf has the rule of each act on a kind of object.
var ruleOf = func() map[On]Rule { //nolint:gochecknoglobals // a constant
	of := map[On]Rule{}
	for _, rule := range Rules() {
		for _, kind := range rule.Kinds {
			of[On{rule.Act, kind}] = rule
		}
	}
	return of
}()

// ErrRefused is wrapped by every [RefusalError].
var ErrRefused = errors.New("not allowed")

// RefusalError is the error of [May]: it names the act, the object, and what is needed.
type RefusalError struct {
	Who   Principal
	Act   Act
	On    Object
	Needs string
}

func (r *RefusalError) Error() string {
	what := string(r.Act) + " " + string(r.On.Kind)
	if r.On.ID != "" {
		what += " " + r.On.ID
	}
	return fmt.Sprintf("%s: not allowed for %s; it needs %s", what, r.Who, r.Needs)
}

// Unwrap returns [ErrRefused].
func (r *RefusalError) Unwrap() error { return ErrRefused }

// Hides reports whether the object belongs to another tenant, so that the principal must not learn
// that it exists. An operator who has named a tenant may.
func (r *RefusalError) Hides() bool {
	bound, tenant := r.Who.Reach(), cmp.Or(r.On.Owner.Tenant, DefaultTenant)
	return r.Act != Make && r.Who.Known != ByProcess && bound != "" && bound != tenant && tenant != EveryTenant
}

// Judge is [May] for the principal of a context.
func Judge(ctx context.Context, act Act, on Object) error { return May(Of(ctx), act, on) }

// May returns nil if a principal may do something to an object now, else a [*RefusalError].
func May(who Principal, act Act, on Object) error {
	refused := func(format string, args ...any) error {
		return &RefusalError{who, act, on, fmt.Sprintf(format, args...)}
	}
	owner := Owner{cmp.Or(on.Owner.Tenant, DefaultTenant), on.Owner.By}
	switch tenant := who.Reach(); {
	case !who.Expires.IsZero() && !time.Now().Before(who.Expires):
		return refused("a new token, since this one expired at %s", who.Expires.UTC().Format(time.RFC3339))
	case tenant == "" || tenant == owner.Tenant:
	case owner.Tenant == EveryTenant && act != See && act != Use:
		return refused("the operator of the fleet, since all tenants share it")
	case owner.Tenant != EveryTenant:
		return refused("a principal of tenant %s, to which it belongs", owner.Tenant)
	}
	rule, is := ruleOf[On{act, on.Kind}]
	if !is {
		return refused("an act that a rule names")
	}
	needs, whose := rule.Others, ""
	switch own := owner.By == who.By(); {
	case !own && rule.Own != rule.Others:
		whose = ", since it belongs to " + cmp.Or(owner.By, "the operator")
	case own && rule.Own == "" && who.Known != ByProcess:
		return refused("another principal with role %s: who makes a call does not approve it", rule.Others)
	case own:
		needs = rule.Own
	}
	if slices.Index(Roles(), cmp.Or(who.Role, RoleOperate)) < slices.Index(Roles(), needs) {
		return refused("role %s, and not %s%s", needs, who.Role, whose)
	}
	return nil
}
