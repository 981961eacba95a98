//! Functions of the crate `kube-cel`, and replacements for some of them.

use std::sync::Arc;

use kube_cel::{
    KubeCelExt as _,
    cel::{
        Context, ExecutionError, Value,
        common::ast::{CallExpr, EntryExpr, Expr, IdedExpr},
    },
};

use super::{
    super::{go, regexp::Pattern},
    eval::{Evaluated, Fault},
    values::{Type, unordered},
};

/// Functions that the environment of CRD rules has (`k8s.io/apiserver/pkg/cel/environment/base.go`), without operators.
const KNOWN: &str = " contains endsWith matches startsWith size type int uint double string bool bytes dyn duration timestamp \
    getDate getDayOfMonth getDayOfWeek getDayOfYear getFullYear getHours getMilliseconds getMinutes getMonth getSeconds \
    charAt indexOf join lastIndexOf lowerAscii replace split substring trim upperAscii format strings.quote reverse \
    find findAll isSorted sum min max \
    url isURL getScheme getHost getHostname getPort getEscapedPath getQuery \
    quantity isQuantity sign isInteger asInteger asApproximateFloat add sub isGreaterThan isLessThan compareTo \
    sets.contains sets.equivalent sets.intersects \
    ip isIP ip.isCanonical family isUnspecified isLoopback isLinkLocalMulticast isLinkLocalUnicast isGlobalUnicast \
    cidr isCIDR containsIP containsCIDR masked prefixLength \
    semver isSemver major minor patch \
    format.named format.dns1123Label format.dns1123Subdomain format.dns1035Label format.qualifiedName format.dns1123LabelPrefix \
    format.dns1123SubdomainPrefix format.dns1035LabelPrefix format.labelValue format.uri format.uuid format.byte format.date \
    format.datetime validate \
    distinct flatten lists.range slice sort sortBy first last \
    all exists existsOne transformList transformMap transformMapEntry \
    optional.of optional.none optional.ofNonZeroValue value hasValue or orValue optMap optFlatMap ";

/// Namespaces of functions.
const SPACES: [&str; 6] = ["strings", "sets", "ip", "format", "lists", "optional"];

/// Returns the qualified name of a call in a namespace, such as `sets.contains`.
pub fn qualified(call: &CallExpr) -> Option<String> {
    match call.target.as_ref().map(|target| &target.expr) {
        Some(Expr::Ident(space)) if SPACES.contains(&space.as_str()) => {
            let name = format!("{space}.{}", call.func_name);
            is_known(&name).then_some(name)
        }
        _ => None,
    }
}

fn is_known(name: &str) -> bool {
    let is_operator = name.starts_with(|c: char| !c.is_ascii_alphabetic());
    is_operator || KNOWN.contains(&format!(" {name} "))
}

/// Checks that all functions of an expression are known, or returns the name of an unknown function.
pub fn check(expression: &IdedExpr) -> Result<(), String> {
    let each = |all: &[IdedExpr]| all.iter().try_for_each(check);
    match &expression.expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Ok(()),
        Expr::Call(call) => {
            if qualified(call).is_none() {
                if !is_known(&call.func_name) {
                    return Err(call.func_name.clone());
                }
                call.target.iter().try_for_each(|target| check(target))?;
            }
            each(&call.args)
        }
        Expr::Comprehension(it) => {
            let parts = [
                &it.iter_range,
                &it.accu_init,
                &it.loop_cond,
                &it.loop_step,
                &it.result,
            ];
            parts.into_iter().try_for_each(check)
        }
        Expr::List(list) => each(&list.elements),
        Expr::Map(map) => map.entries.iter().try_for_each(|entry| match &entry.expr {
            EntryExpr::MapEntry(entry) => check(&entry.key).and_then(|()| check(&entry.value)),
            EntryExpr::StructField(field) => check(&field.value),
        }),
        Expr::Select(select) => check(&select.operand),
        Expr::Struct(it) => Err(it.type_name.clone()),
    }
}

thread_local! {
    /// The functions of the library.
    static LIBRARY: Context<'static> = Context::default().with_all();
}

/// Calls a function of the library.
pub fn library(name: &str, target: Option<Value>, args: Vec<Value>) -> Evaluated {
    let expr = |expr| IdedExpr { id: 0, expr };
    let argument = |at: usize| format!("@{at}");
    let names = (0..args.len()).map(|at| expr(Expr::Ident(argument(at))));
    let call = expr(Expr::Call(CallExpr {
        func_name: name.to_owned(),
        target: target
            .is_some()
            .then(|| Box::new(expr(Expr::Ident("@target".to_owned())))),
        args: names.collect(),
    }));
    LIBRARY.with(|library| {
        let mut scope = library.new_inner_scope();
        for (at, value) in args.into_iter().enumerate() {
            scope.add_variable_from_value(argument(at), plain(value));
        }
        if let Some(target) = target {
            scope.add_variable_from_value("@target", plain(target));
        }
        Value::resolve(&call, &scope).map_err(|error| match error {
            ExecutionError::FunctionError { message, .. } => Fault::Known(message),
            ExecutionError::NoSuchOverload
            | ExecutionError::UnexpectedType { .. }
            | ExecutionError::UnsupportedTargetType { .. } => {
                Fault::Known("no such overload".to_owned())
            }
            other => Fault::Unknown(format!("the function {name} of CEL: {other}")),
        })
    })
}

/// Returns a list of the library for a list whose order is irrelevant.
pub fn plain(value: Value) -> Value {
    match unordered(&value) {
        Some(list) => Value::List(list.all.clone()),
        None => value,
    }
}

fn overload<T>() -> Result<T, Fault> {
    Err(Fault::Known("no such overload".to_owned()))
}

fn pattern(text: &str) -> Result<Pattern, Fault> {
    Pattern::new(text).map_err(Fault::Unknown)
}

/// Calls a function, with the target as the first argument.
pub fn call(name: &str, is_method: bool, mut args: Vec<Value>) -> Evaluated {
    if args.iter().any(|arg| matches!(arg, Value::Opaque(_))) {
        args = args.into_iter().map(plain).collect();
    }
    let text = |value: &str| Value::String(Arc::new(value.to_owned()));
    match (name, args.as_slice()) {
        ("size", [it]) => size(it),
        ("dyn", [it]) => Ok(it.clone()),
        ("type", [it]) => Ok(Value::Opaque(Arc::new(Type(type_of(it))))),
        ("contains", [Value::String(it), Value::String(part)]) => {
            Ok(it.contains(part.as_str()).into())
        }
        ("startsWith", [Value::String(it), Value::String(part)]) => {
            Ok(it.starts_with(part.as_str()).into())
        }
        ("endsWith", [Value::String(it), Value::String(part)]) => {
            Ok(it.ends_with(part.as_str()).into())
        }
        ("matches", [Value::String(it), Value::String(of)]) => Ok(pattern(of)?.is_match(it).into()),
        ("find", [Value::String(it), Value::String(of)]) => {
            Ok(text(pattern(of)?.matches(it).next().unwrap_or_default()))
        }
        ("findAll", [Value::String(it), Value::String(of), rest @ ..]) => {
            let most = match rest {
                [Value::Int(most)] => usize::try_from(*most).unwrap_or(usize::MAX),
                _ => usize::MAX,
            };
            let found = pattern(of)?;
            let found = found.matches(it).take(most).map(text);
            Ok(Value::List(Arc::new(found.collect())))
        }
        ("string" | "int" | "double" | "bool" | "uint", [it]) => converted(name, it),
        // The library counts bytes or lacks these types.
        ("timestamp", [Value::Timestamp(_)]) | ("duration", [Value::Duration(_)]) => {
            Ok(args.remove(0))
        }
        ("bytes", [Value::Bytes(_)]) => Ok(args.remove(0)),
        _ if is_method && !args.is_empty() => {
            let target = args.remove(0);
            library(name, Some(target), args)
        }
        _ => library(name, None, args),
    }
}

fn size(value: &Value) -> Evaluated {
    let size = match value {
        Value::String(text) => text.chars().count(),
        Value::List(all) => all.len(),
        Value::Map(map) => map.map.len(),
        Value::Bytes(bytes) => bytes.len(),
        _ => return overload(),
    };
    Ok(Value::Int(i64::try_from(size).unwrap_or(i64::MAX)))
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::List(_) => "list",
        Value::Map(_) => "map",
        Value::Int(_) => "int",
        Value::UInt(_) => "uint",
        Value::Float(_) => "double",
        Value::String(_) => "string",
        Value::Bytes(_) => "bytes",
        Value::Bool(_) => "bool",
        Value::Null => "null_type",
        Value::Duration(_) => "google.protobuf.Duration",
        Value::Timestamp(_) => "google.protobuf.Timestamp",
        Value::Opaque(_) | Value::Function(..) => "dyn",
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "the ranges are checked, or precision is lost in Go as well"
)]
fn converted(name: &str, value: &Value) -> Evaluated {
    let text = |text: String| Value::String(Arc::new(text));
    let range = || Fault::Known("integer overflow".to_owned());
    Ok(match (name, value) {
        ("string", Value::Int(it)) => text(it.to_string()),
        ("string", Value::UInt(it)) => text(it.to_string()),
        ("string", Value::Bool(it)) => text(it.to_string()),
        ("string", Value::Float(it)) => text(go::float(*it)),
        ("string", Value::Duration(it)) => {
            let nanoseconds = it.num_nanoseconds().unwrap_or_default();
            text(format!("{}s", nanoseconds as f64 / 1e9))
        }
        ("string", Value::Timestamp(it)) => text(it.to_rfc3339().replace("+00:00", "Z")),
        ("string", other) => return library("string", None, vec![other.clone()]),
        ("int", Value::Int(_))
        | ("double", Value::Float(_))
        | ("bool", Value::Bool(_))
        | ("uint", Value::UInt(_)) => value.clone(),
        ("int", Value::UInt(it)) => Value::Int(i64::try_from(*it).map_err(|_| range())?),
        ("int", Value::Float(it)) if it.abs() < 9.223_372_036_854_775e18 => Value::Int(*it as i64),
        ("int" | "uint", Value::Float(it)) if name == "int" || *it < 0.0 => return Err(range()),
        ("uint", Value::Float(it)) if *it < 1.844_674_407_370_955e19 => Value::UInt(*it as u64),
        ("uint", Value::Int(it)) => Value::UInt(u64::try_from(*it).map_err(|_| range())?),
        ("int", Value::String(it)) => match it.parse() {
            Ok(it) => Value::Int(it),
            Err(_) => {
                return Err(Fault::Known(format!(
                    "strconv.ParseInt: parsing {}: invalid syntax",
                    go::quoted(it)
                )));
            }
        },
        ("int", Value::Timestamp(it)) => Value::Int(it.timestamp()),
        ("double", Value::Int(it)) => Value::Float(*it as f64),
        ("double", Value::UInt(it)) => Value::Float(*it as f64),
        ("double", Value::String(it)) => match it.parse() {
            Ok(it) => Value::Float(it),
            Err(_) => {
                return Err(Fault::Known(format!(
                    "strconv.ParseFloat: parsing {}: invalid syntax",
                    go::quoted(it)
                )));
            }
        },
        ("bool", Value::String(it)) => match it.as_str() {
            "1" | "t" | "T" | "TRUE" | "true" | "True" => true.into(),
            "0" | "f" | "F" | "FALSE" | "false" | "False" => false.into(),
            _ => {
                return Err(Fault::Known(format!(
                    "strconv.ParseBool: parsing {}: invalid syntax",
                    go::quoted(it)
                )));
            }
        },
        _ => return overload(),
    })
}
