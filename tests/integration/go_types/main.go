// What Cluster API's own types make of messages: samples of each, and ours read as strictly as can be.
package main

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	runtimecatalog "sigs.k8s.io/cluster-api/api/runtime/catalog"
	runtimehooksv1 "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"
)

// words are what some types of text can be; any other text is "x".
var words = map[reflect.Type]string{
	reflect.TypeFor[runtimehooksv1.ResponseStatus](): "Success",
	reflect.TypeFor[runtimehooksv1.FailurePolicy]():  "Fail",
	reflect.TypeFor[runtimehooksv1.PatchType]():      "JSONPatch",
}

// answer is all that is said.
type answer struct {
	Hooks []hook `json:"hooks"`
	// Types are the shapes of all fields, by the names of their types and of themselves.
	Types map[string]map[string]string `json:"types"`
}

// sample is a message with every field set, what is wrong with ours, and what of it is left.
type sample struct {
	Kind  string         `json:"kind"`
	Full  runtime.Object `json:"full"`
	Wrong string         `json:"wrong"`
	Read  runtime.Object `json:"read"`
}

type hook struct {
	APIVersion string `json:"apiVersion"`
	Name       string `json:"name"`
	Path       string `json:"path"`
	Singleton  bool   `json:"singleton"`
	Request    sample `json:"request"`
	Response   sample `json:"response"`
}

// given are messages of one hook.
type given struct {
	Request  json.RawMessage `json:"request"`
	Response json.RawMessage `json:"response"`
}

func main() {
	catalog := runtimecatalog.New()
	must(runtimehooksv1.AddToCatalog(catalog))
	var ours map[string]given
	must(json.NewDecoder(os.Stdin).Decode(&ours))
	said := answer{Types: map[string]map[string]string{}}
	for id, about := range catalog.AllKnownHooks() {
		handler := "handler"
		if about.Metadata.Singleton {
			handler = ""
		}
		said.Hooks = append(said.Hooks, hook{
			APIVersion: id.GroupVersion().String(),
			Name:       id.Hook,
			Path:       runtimecatalog.GVHToPath(id, handler),
			Singleton:  about.Metadata.Singleton,
			Request:    of(catalog.NewRequest, id, ours[id.Hook].Request),
			Response:   of(catalog.NewResponse, id, ours[id.Hook].Response),
		})
	}
	for _, one := range said.Hooks {
		shape(reflect.TypeOf(one.Request.Full), said.Types)
		shape(reflect.TypeOf(one.Response.Full), said.Types)
	}
	must(json.NewEncoder(os.Stdout).Encode(said))
}

func of(
	create func(runtimecatalog.GroupVersionHook) (runtime.Object, error),
	id runtimecatalog.GroupVersionHook,
	ours json.RawMessage,
) sample {
	full, err := create(id)
	must(err)
	message := reflect.ValueOf(full).Elem()
	fill(message, nil)
	read, err := create(id)
	must(err)
	said := sample{Kind: message.Type().Name(), Full: full, Read: read}
	decoder := json.NewDecoder(bytes.NewReader(ours))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(read); err != nil {
		said.Wrong = err.Error()
	}
	return said
}

// fill sets every field, and ends where a type is inside of itself.
func fill(value reflect.Value, inside []reflect.Type) {
	switch special := value.Addr().Interface().(type) {
	case *runtime.RawExtension:
		special.Raw = []byte(`{"kind":"Any","deep":[1,2.5,null,true,{"x":"y"}]}`)
		return
	case *apiextensionsv1.JSON:
		special.Raw = []byte(`{"deep":[1,2.5,null,true,{"x":"y"}]}`)
		return
	case *metav1.Time:
		*special = metav1.Unix(1e9, 0)
		return
	case json.Marshaler:
		// Quantities and the like have a form of their own, which their zero has too.
		return
	}
	for _, outer := range inside {
		if outer == value.Type() {
			return
		}
	}
	inside = append(inside, value.Type())
	switch value.Kind() {
	case reflect.String:
		word, ok := words[value.Type()]
		if !ok {
			word = "x"
		}
		value.SetString(word)
	case reflect.Bool:
		value.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		value.SetInt(1)
	case reflect.Float64:
		value.SetFloat(1.5)
	case reflect.Uint8:
		value.SetUint('x')
	case reflect.Pointer:
		value.Set(reflect.New(value.Type().Elem()))
		fill(value.Elem(), inside)
	case reflect.Slice:
		value.Set(reflect.MakeSlice(value.Type(), 1, 1))
		fill(value.Index(0), inside)
	case reflect.Map:
		held := reflect.New(value.Type().Elem()).Elem()
		fill(held, inside)
		value.Set(reflect.MakeMap(value.Type()))
		value.SetMapIndex(reflect.ValueOf("x").Convert(value.Type().Key()), held)
	case reflect.Struct:
		for field := range value.NumField() {
			if value.Type().Field(field).IsExported() {
				fill(value.Field(field), inside)
			}
		}
	}
}

// documented are types that say themselves how they are described.
type documented interface{ OpenAPISchemaType() []string }

// shape says how a document describes a type, and notes the types that it refers to.
func shape(of reflect.Type, types map[string]map[string]string) string {
	switch of.Kind() {
	case reflect.Pointer:
		return shape(of.Elem(), types)
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Int32:
		return "integer int32"
	case reflect.Int, reflect.Int64:
		return "integer int64"
	case reflect.Slice:
		if of.Elem().Kind() == reflect.Uint8 {
			return "string byte"
		}
		return "list of " + shape(of.Elem(), types)
	case reflect.Map:
		return "map of " + shape(of.Elem(), types)
	case reflect.Struct:
		name := strings.ReplaceAll(of.PkgPath(), "/", ".") + "." + of.Name()
		if _, known := types[name]; !known {
			types[name] = map[string]string{}
			if _, itself := reflect.New(of).Interface().(documented); !itself {
				shapes(of, types[name], types)
			}
		}
		return name
	default:
		panic("no shape for " + of.String())
	}
}

func shapes(of reflect.Type, fields map[string]string, types map[string]map[string]string) {
	for number := range of.NumField() {
		field := of.Field(number)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name == "-" || !field.IsExported():
		case name == "" && field.Anonymous:
			shapes(field.Type, fields, types)
		default:
			fields[name] = shape(field.Type, types)
		}
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
