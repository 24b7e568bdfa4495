package base

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// User is a user of the API server, authenticated by a bearer token.
type User struct {
	Name   string
	Token  string
	Groups []string
}

// ParseUser reads name=token[,group...]. A ServiceAccount gets the groups of
// ServiceAccounts.
func ParseUser(s string) (User, error) {
	name, rest, ok := strings.Cut(s, "=")
	parts := strings.Split(rest, ",")
	if !ok || name == "" || parts[0] == "" {
		return User{}, fmt.Errorf("%q is not name=token[,group...]", s)
	}
	u := User{Name: name, Token: parts[0], Groups: parts[1:]}
	if account, ok := strings.CutPrefix(name, "system:serviceaccount:"); ok {
		namespace, _, _ := strings.Cut(account, ":")
		u.Groups = append(u.Groups, "system:serviceaccounts", "system:serviceaccounts:"+namespace)
	}
	return u, nil
}

// FileName is the user's name as part of a file's name. A colon would end the
// path in a KUBECONFIG variable.
func (u User) FileName() string {
	return strings.NewReplacer(":", "_", "/", "_").Replace(u.Name)
}

// WriteTokenFile writes the users in the form that --token-auth-file reads.
func WriteTokenFile(path string, users []User) error {
	var b strings.Builder
	for _, u := range users {
		fmt.Fprintf(&b, "%s,%q,%q,%q\n", u.Token, u.Name, u.Name, strings.Join(u.Groups, ","))
	}
	return os.WriteFile(path, []byte(b.String()), 0o600)
}

// Kubeconfig is a kubeconfig for one user. It is JSON, which is YAML too.
func Kubeconfig(server string, ca []byte, u User) []byte {
	type object = map[string]any
	data, err := json.MarshalIndent(object{
		"apiVersion":      "v1",
		"kind":            "Config",
		"current-context": "trainyard",
		"clusters": []object{{"name": "trainyard", "cluster": object{
			"server":                     server,
			"certificate-authority-data": base64.StdEncoding.EncodeToString(ca),
		}}},
		"users": []object{{"name": u.Name, "user": object{"token": u.Token}}},
		"contexts": []object{{"name": "trainyard", "context": object{
			"cluster": "trainyard", "user": u.Name,
		}}},
	}, "", "  ")
	if err != nil {
		panic(err)
	}
	return append(data, '\n')
}

// WriteFile writes the file atomically, since others wait for it to appear.
func WriteFile(path string, data []byte, mode os.FileMode) error {
	tmp := fmt.Sprintf("%s.%d.tmp", path, os.Getpid())
	if err := os.WriteFile(tmp, data, mode); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
