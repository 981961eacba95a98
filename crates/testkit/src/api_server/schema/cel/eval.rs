//! The interpreter.

use std::{cmp::Ordering, collections::HashMap, fmt, sync::Arc};

use kube_cel::cel::{
    ExecutionError, Value,
    common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, operators},
    objects::{Key, KeyRef, Map},
};

use super::{
    functions::{call, library, plain, qualified},
    values::{Invalid, Type, as_optional, optional, unordered},
};

/// Why an expression has no value.
#[derive(Clone, Debug)]
pub enum Fault {
    /// An error of the rule, with the message of `cel-go` if it is known.
    Known(String),
    /// The real value is not known.
    Unknown(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Known(words) | Self::Unknown(words)) = self;
        f.write_str(words)
    }
}

pub type Evaluated = Result<Value, Fault>;

/// Variables of an expression.
pub struct Scope<'a> {
    outer: Option<&'a Scope<'a>>,
    name: &'a str,
    value: Option<Value>,
}

impl<'a> Scope<'a> {
    pub fn empty() -> Self {
        Self {
            outer: None,
            name: "",
            value: None,
        }
    }

    /// Returns a scope with one more variable.
    pub fn with<'b>(&'b self, name: &'b str, value: Value) -> Scope<'b>
    where
        'a: 'b,
    {
        Scope {
            outer: Some(self),
            name,
            value: Some(value),
        }
    }

    fn get(&self, name: &str) -> Option<&Value> {
        if self.name == name && self.value.is_some() {
            return self.value.as_ref();
        }
        self.outer?.get(name)
    }
}

fn known<T>(words: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Known(words.into()))
}

fn overload<T>() -> Result<T, Fault> {
    known("no such overload")
}

/// Returns an error for an invalid value.
fn valid(value: Value) -> Evaluated {
    if let Value::Opaque(opaque) = &value
        && let Some(Invalid(words)) = opaque.downcast_ref()
    {
        return known(words.clone());
    }
    Ok(value)
}

pub fn evaluate(expression: &IdedExpr, scope: &Scope<'_>) -> Evaluated {
    match &expression.expr {
        Expr::Literal(literal) => Value::try_from(literal.to_val().as_ref())
            .map_err(|error| Fault::Unknown(error.to_string())),
        Expr::Ident(name) => match (scope.get(name), type_named(name)) {
            (Some(value), _) => valid(value.clone()),
            (None, Some(name)) => Ok(Value::Opaque(Arc::new(Type(name)))),
            (None, None) => known(format!("no such attribute(s): {name}")),
        },
        Expr::Select(select) => {
            let operand = evaluate(&select.operand, scope)?;
            if select.test {
                has(&operand, &select.field)
            } else {
                selected(&operand, &select.field)
            }
        }
        Expr::List(list) => {
            let mut all = Vec::new();
            for (at, element) in list.elements.iter().enumerate() {
                let value = evaluate(element, scope)?;
                if list.optional_indices.contains(&at) {
                    all.extend(as_optional(&value).and_then(|it| it.value().cloned()));
                } else {
                    all.push(value);
                }
            }
            Ok(Value::List(Arc::new(all)))
        }
        Expr::Map(map) => {
            let mut all = HashMap::new();
            for entry in &map.entries {
                let EntryExpr::MapEntry(entry) = &entry.expr else {
                    return Err(Fault::Unknown("a message in CEL".to_owned()));
                };
                let key = evaluate(&entry.key, scope)?;
                let value = evaluate(&entry.value, scope)?;
                let Ok(key) = TryInto::<Key>::try_into(key) else {
                    return overload();
                };
                if !entry.optional {
                    all.insert(key, value);
                } else if let Some(value) = as_optional(&value).and_then(|it| it.value()) {
                    all.insert(key, value.clone());
                }
            }
            Ok(Value::Map(Map { map: Arc::new(all) }))
        }
        Expr::Call(call) => called(call, scope),
        Expr::Comprehension(it) => comprehension(it, scope),
        Expr::Struct(_) | Expr::Unspecified => {
            Err(Fault::Unknown("such an expression of CEL".to_owned()))
        }
    }
}

fn type_named(name: &str) -> Option<&'static str> {
    let types = [
        "int",
        "uint",
        "double",
        "string",
        "bytes",
        "bool",
        "list",
        "map",
        "null_type",
    ];
    types.into_iter().find(|it| *it == name)
}

/// Returns a field of a map, if it is there.
fn field(operand: &Value, name: &str) -> Result<Option<Value>, Fault> {
    let Value::Map(map) = operand else {
        return overload();
    };
    map.get(&KeyRef::String(name))
        .cloned()
        .map(valid)
        .transpose()
}

fn selected(operand: &Value, name: &str) -> Evaluated {
    if let Some(inner) = as_optional(operand) {
        let value = inner.value().map(|inner| field(inner, name)).transpose()?;
        return Ok(optional(value.flatten()));
    }
    match field(operand, name)? {
        Some(value) => Ok(value),
        None => known(format!("no such key: {name}")),
    }
}

fn has(operand: &Value, name: &str) -> Evaluated {
    let operand = match as_optional(operand) {
        Some(inner) => match inner.value() {
            Some(inner) => inner,
            None => return Ok(false.into()),
        },
        None => operand,
    };
    let Value::Map(map) = operand else {
        return overload();
    };
    Ok(map.get(&KeyRef::String(name)).is_some().into())
}

fn truth(value: Evaluated) -> Result<bool, Fault> {
    match value? {
        Value::Bool(is) => Ok(is),
        _ => overload(),
    }
}

/// Evaluates `&&` or `||`: an error does not count if the other side decides.
fn logic(call: &CallExpr, scope: &Scope<'_>, decisive: bool) -> Evaluated {
    let left = truth(evaluate(&call.args[0], scope));
    if matches!(left, Ok(is) if is == decisive) {
        return Ok(decisive.into());
    }
    let right = truth(evaluate(&call.args[1], scope));
    if matches!(right, Ok(is) if is == decisive) {
        return Ok(decisive.into());
    }
    left?;
    right?;
    Ok((!decisive).into())
}

#[allow(clippy::too_many_lines, reason = "one arm for each operator")]
fn called(it: &CallExpr, scope: &Scope<'_>) -> Evaluated {
    let name = it.func_name.as_str();
    let arg = |at: usize| evaluate(&it.args[at], scope);
    match (name, it.args.len()) {
        (operators::LOGICAL_AND, 2) => return logic(it, scope, false),
        (operators::LOGICAL_OR, 2) => return logic(it, scope, true),
        (operators::LOGICAL_NOT, 1) => return Ok((!truth(arg(0))?).into()),
        (operators::CONDITIONAL, 3) => return if truth(arg(0))? { arg(1) } else { arg(2) },
        (operators::NOT_STRICTLY_FALSE, 1) => return Ok(truth(arg(0)).unwrap_or(true).into()),
        (operators::NEGATE, 1) => return negated(&arg(0)?),
        (operators::EQUALS, 2) => return Ok(equal(&arg(0)?, &arg(1)?).into()),
        (operators::NOT_EQUALS, 2) => return Ok((!equal(&arg(0)?, &arg(1)?)).into()),
        (operators::IN, 2) => return contained(&arg(0)?, &plain(arg(1)?)),
        (operators::INDEX, 2) => return indexed(&arg(0)?, &arg(1)?),
        (operators::OPT_INDEX, 2) => {
            let (operand, key) = (arg(0)?, arg(1)?);
            let operand = match as_optional(&operand) {
                Some(inner) => inner.value().cloned(),
                None => Some(operand),
            };
            let value = operand.map(|operand| indexed(&operand, &key));
            return Ok(optional(value.and_then(Result::ok)));
        }
        (operators::OPT_SELECT, 2) => {
            let (operand, Value::String(name)) = (arg(0)?, arg(1)?) else {
                return overload();
            };
            let operand = match as_optional(&operand) {
                Some(inner) => inner.value().cloned(),
                None => Some(operand),
            };
            let value = operand.map(|operand| field(&operand, &name)).transpose()?;
            return Ok(optional(value.flatten()));
        }
        (
            operators::ADD
            | operators::SUBSTRACT
            | operators::MULTIPLY
            | operators::DIVIDE
            | operators::MODULO,
            2,
        ) => {
            return arithmetic(name, arg(0)?, arg(1)?);
        }
        (
            operators::LESS
            | operators::LESS_EQUALS
            | operators::GREATER
            | operators::GREATER_EQUALS,
            2,
        ) => {
            let order = compared(&arg(0)?, &arg(1)?)?;
            return Ok(match name {
                operators::LESS => order.is_lt(),
                operators::LESS_EQUALS => order.is_le(),
                operators::GREATER => order.is_gt(),
                _ => order.is_ge(),
            }
            .into());
        }
        _ => {}
    }
    if let Some(name) = qualified(it) {
        let args = it.args.iter().map(|arg| evaluate(arg, scope));
        let args = args.collect::<Result<Vec<_>, _>>()?;
        return match (name.as_str(), args.as_slice()) {
            ("optional.none", []) => Ok(optional(None)),
            ("optional.of", [value]) => Ok(optional(Some(value.clone()))),
            ("optional.ofNonZeroValue", [value]) => {
                Ok(optional((!value.is_zero()).then(|| value.clone())))
            }
            (name, _) => library(name, None, args),
        };
    }
    let Some(target) = &it.target else {
        let args = it.args.iter().map(|arg| evaluate(arg, scope));
        return call(name, false, args.collect::<Result<_, _>>()?);
    };
    let target = evaluate(target, scope)?;
    if let Some(value) = with_variables(name, &target, &it.args, scope) {
        return value;
    }
    if let Some(inner) = as_optional(&target) {
        return match (name, it.args.len()) {
            ("hasValue", 0) => Ok(inner.value().is_some().into()),
            ("value", 0) => match inner.value() {
                Some(value) => Ok(value.clone()),
                None => known("optional.none() dereference"),
            },
            ("orValue", 1) => inner.value().cloned().map_or_else(|| arg(0), Ok),
            ("or", 1) => {
                if inner.value().is_some() {
                    Ok(target.clone())
                } else {
                    arg(0)
                }
            }
            _ => overload(),
        };
    }
    let mut args = vec![target];
    for arg in &it.args {
        args.push(evaluate(arg, scope)?);
    }
    call(name, true, args)
}

/// Evaluates the macros that the parser does not expand.
fn with_variables(
    name: &str,
    target: &Value,
    args: &[IdedExpr],
    scope: &Scope<'_>,
) -> Option<Evaluated> {
    let ident = |at: usize| match &args.get(at)?.expr {
        Expr::Ident(name) => Some(name.as_str()),
        _ => None,
    };
    match (name, args.len()) {
        ("optMap" | "optFlatMap", 2) => {
            let (variable, inner) = (ident(0)?, as_optional(target)?);
            let value = inner
                .value()
                .map(|inner| evaluate(&args[1], &scope.with(variable, inner.clone())));
            Some(match value {
                None => Ok(optional(None)),
                Some(value) if name == "optMap" => value.map(|value| optional(Some(value))),
                Some(value) => value,
            })
        }
        ("sortBy", 2) => Some(sorted_by(target, ident(0)?, &args[1], scope)),
        ("all" | "exists" | "existsOne" | "exists_one", 3)
        | ("transformList" | "transformMap" | "transformMapEntry", 3 | 4) => Some(two_variables(
            name,
            target,
            (ident(0)?, ident(1)?),
            &args[2..],
            scope,
        )),
        _ => None,
    }
}

fn sorted_by(target: &Value, variable: &str, key: &IdedExpr, scope: &Scope<'_>) -> Evaluated {
    let Value::List(all) = plain(target.clone()) else {
        return overload();
    };
    let mut keyed = Vec::new();
    for value in all.iter() {
        keyed.push((
            evaluate(key, &scope.with(variable, value.clone()))?,
            value.clone(),
        ));
    }
    let mut failed = None;
    keyed.sort_by(|(a, _), (b, _)| {
        compared(a, b).unwrap_or_else(|fault| {
            failed.get_or_insert(fault);
            Ordering::Equal
        })
    });
    match failed {
        Some(fault) => Err(fault),
        None => Ok(Value::List(Arc::new(
            keyed.into_iter().map(|(_, value)| value).collect(),
        ))),
    }
}

/// Returns the elements with their indexes, or the values with their keys, in order.
fn entries(target: &Value) -> Result<Vec<(Value, Value)>, Fault> {
    match plain(target.clone()) {
        Value::List(all) => Ok((0..).map(Value::Int).zip(all.iter().cloned()).collect()),
        Value::Map(map) => {
            let mut entries: Vec<_> = map.map.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            Ok(entries
                .into_iter()
                .map(|(key, value)| (key.into(), value.clone()))
                .collect())
        }
        _ => overload(),
    }
}

fn two_variables(
    name: &str,
    target: &Value,
    (first, second): (&str, &str),
    args: &[IdedExpr],
    scope: &Scope<'_>,
) -> Evaluated {
    let (mut list, mut map, mut count, mut fault) = (Vec::new(), HashMap::new(), 0, None);
    for (key, value) in entries(target)? {
        let scope = scope.with(first, valid(key.clone())?);
        let scope = scope.with(second, valid(value)?);
        let [condition @ .., result] = args else {
            return overload();
        };
        if let [condition] = condition
            && !truth(evaluate(condition, &scope))?
        {
            continue;
        }
        let result = evaluate(result, &scope);
        match name {
            "all" | "exists" => match truth(result) {
                Ok(is) if is == (name == "exists") => return Ok(is.into()),
                Ok(_) => {}
                Err(error) => fault = Some(error),
            },
            "existsOne" | "exists_one" => count += i32::from(truth(result)?),
            "transformList" => list.push(result?),
            "transformMap" => {
                let Ok(key) = TryInto::<Key>::try_into(key) else {
                    return overload();
                };
                map.insert(key, result?);
            }
            _ => match result? {
                Value::Map(entry) => map.extend(
                    entry
                        .map
                        .iter()
                        .map(|(key, value)| (key.clone(), value.clone())),
                ),
                _ => return overload(),
            },
        }
    }
    if let Some(fault) = fault {
        return Err(fault);
    }
    Ok(match name {
        "all" => true.into(),
        "exists" => false.into(),
        "existsOne" | "exists_one" => (count == 1).into(),
        "transformList" => Value::List(Arc::new(list)),
        _ => Value::Map(Map { map: Arc::new(map) }),
    })
}

fn comprehension(it: &ComprehensionExpr, scope: &Scope<'_>) -> Evaluated {
    let range = evaluate(&it.iter_range, scope)?;
    let mut result = evaluate(&it.accu_init, scope);
    let is_list = matches!(plain(range.clone()), Value::List(_));
    for (key, value) in entries(&range)? {
        let accumulated = with_result(scope, &it.accu_var, &result);
        if !truth(evaluate(&it.loop_cond, &accumulated)).unwrap_or(true) {
            break;
        }
        let item = if is_list { value } else { key };
        let inner = accumulated.with(&it.iter_var, item);
        let next = evaluate(&it.loop_step, &inner);
        // An error stays, unless a later element decides.
        result = next;
    }
    let accumulated = with_result(scope, &it.accu_var, &result);
    evaluate(&it.result, &accumulated)
}

/// Binds the result of the steps before. An error becomes an invalid value, so that only its use fails.
fn with_result<'a>(scope: &'a Scope<'a>, name: &'a str, result: &Evaluated) -> Scope<'a> {
    let value = match result {
        Ok(value) => value.clone(),
        Err(fault) => Value::Opaque(Arc::new(Invalid(fault.to_string()))),
    };
    scope.with(name, value)
}

fn negated(value: &Value) -> Evaluated {
    match value {
        Value::Int(it) => it
            .checked_neg()
            .map(Value::Int)
            .map_or_else(|| known("integer overflow"), Ok),
        Value::Float(it) => Ok(Value::Float(-it)),
        _ => overload(),
    }
}

fn equal(left: &Value, right: &Value) -> bool {
    if let Some(left) = unordered(left) {
        return match plain(right.clone()) {
            Value::List(right) => left.equals(&right),
            _ => false,
        };
    }
    match (left, unordered(right)) {
        (Value::List(left), Some(right)) => **left == **right.all,
        _ => left == right,
    }
}

fn contained(item: &Value, container: &Value) -> Evaluated {
    match container {
        Value::List(all) => Ok(all.iter().any(|it| equal(it, item)).into()),
        Value::Map(map) => Ok(KeyRef::try_from(item)
            .is_ok_and(|key| map.get(&key).is_some())
            .into()),
        _ => overload(),
    }
}

#[allow(clippy::cast_possible_truncation, reason = "whole numbers only")]
fn indexed(operand: &Value, key: &Value) -> Evaluated {
    if let Some(inner) = as_optional(operand) {
        let value = inner.value().map(|inner| indexed(inner, key));
        return Ok(optional(value.and_then(Result::ok)));
    }
    match (plain(operand.clone()), key) {
        (Value::List(all), key) => {
            let at = match key {
                Value::Int(at) => *at,
                Value::UInt(at) => i64::try_from(*at).unwrap_or(i64::MAX),
                Value::Float(at) if at.fract() == 0.0 => *at as i64,
                _ => return overload(),
            };
            match usize::try_from(at).ok().and_then(|at| all.get(at)) {
                Some(value) => valid(value.clone()),
                None => known(format!("index out of bounds: {at}")),
            }
        }
        (Value::Map(map), key) => {
            let Ok(of) = KeyRef::try_from(key) else {
                return overload();
            };
            match map.get(&of) {
                Some(value) => valid(value.clone()),
                None => known(format!("no such key: {}", shown(key))),
            }
        }
        _ => overload(),
    }
}

fn shown(key: &Value) -> String {
    match key {
        Value::String(text) => text.to_string(),
        Value::Int(it) => it.to_string(),
        Value::UInt(it) => it.to_string(),
        Value::Bool(it) => it.to_string(),
        other => format!("{other:?}"),
    }
}

fn compared(left: &Value, right: &Value) -> Result<Ordering, Fault> {
    if let (Value::Bytes(left), Value::Bytes(right)) = (left, right) {
        return Ok(left.cmp(right));
    }
    let is_null = matches!((left, right), (Value::Null, _) | (_, Value::Null));
    left.partial_cmp(right)
        .filter(|_| !is_null)
        .map_or_else(overload, Ok)
}

fn arithmetic(operator: &str, left: Value, right: Value) -> Evaluated {
    let whole = |value: Option<i64>| {
        value
            .map(Value::Int)
            .map_or_else(|| known("integer overflow"), Ok)
    };
    let unsigned = |value: Option<u64>| {
        value
            .map(Value::UInt)
            .map_or_else(|| known("unsigned integer overflow"), Ok)
    };
    let is_division = matches!(operator, operators::DIVIDE | operators::MODULO);
    match (&left, &right) {
        (Value::Int(_), Value::Int(0)) | (Value::UInt(_), Value::UInt(0)) if is_division => {
            known(if operator == operators::DIVIDE {
                "division by zero"
            } else {
                "modulus by zero"
            })
        }
        (Value::Int(a), Value::Int(b)) => whole(match operator {
            operators::ADD => a.checked_add(*b),
            operators::SUBSTRACT => a.checked_sub(*b),
            operators::MULTIPLY => a.checked_mul(*b),
            operators::DIVIDE => a.checked_div(*b),
            _ => a.checked_rem(*b),
        }),
        (Value::UInt(a), Value::UInt(b)) => unsigned(match operator {
            operators::ADD => a.checked_add(*b),
            operators::SUBSTRACT => a.checked_sub(*b),
            operators::MULTIPLY => a.checked_mul(*b),
            operators::DIVIDE => a.checked_div(*b),
            _ => a.checked_rem(*b),
        }),
        (Value::Float(a), Value::Float(b)) => Ok(Value::Float(match operator {
            operators::ADD => a + b,
            operators::SUBSTRACT => a - b,
            operators::MULTIPLY => a * b,
            operators::DIVIDE => a / b,
            _ => return overload(),
        })),
        (Value::String(a), Value::String(b)) if operator == operators::ADD => {
            Ok(Value::String(Arc::new(format!("{a}{b}"))))
        }
        (Value::Bytes(a), Value::Bytes(b)) if operator == operators::ADD => Ok(Value::Bytes(
            Arc::new([a.as_slice(), b.as_slice()].concat()),
        )),
        (Value::Duration(_) | Value::Timestamp(_), _)
        | (_, Value::Duration(_) | Value::Timestamp(_)) => of_times(operator, left, right),
        _ if operator == operators::ADD => {
            if let Some(list) = unordered(&left)
                && let Value::List(other) = plain(right.clone())
            {
                return Ok(Value::Opaque(Arc::new(list.and(&other))));
            }
            match (plain(left), plain(right)) {
                (Value::List(a), Value::List(b)) => {
                    Ok(Value::List(Arc::new([a.as_slice(), b.as_slice()].concat())))
                }
                _ => overload(),
            }
        }
        _ => overload(),
    }
}

/// Adds or subtracts times and durations, by the library.
fn of_times(operator: &str, left: Value, right: Value) -> Evaluated {
    let expr = |expr| IdedExpr { id: 0, expr };
    let sum = expr(Expr::Call(CallExpr {
        func_name: operator.to_owned(),
        target: None,
        args: vec![
            expr(Expr::Ident("a".to_owned())),
            expr(Expr::Ident("b".to_owned())),
        ],
    }));
    let mut scope = kube_cel::cel::Context::empty();
    scope.add_variable_from_value("a", left);
    scope.add_variable_from_value("b", right);
    Value::resolve(&sum, &scope).map_err(|error| match error {
        ExecutionError::Overflow(..) => Fault::Known("integer overflow".to_owned()),
        _ => Fault::Known("no such overload".to_owned()),
    })
}
