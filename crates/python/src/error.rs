//! Errors of operations as exceptions of the package, which `stdchk._errors` defines.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::Value;
use stdchk_operations::{Code, Error};

/// The exception for an error. `failures`: what was told of single objects meanwhile.
pub fn exception(py: Python<'_>, error: &Error, failures: &[Error]) -> PyErr {
    match made(py, error, failures) {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

fn made<'py>(py: Python<'py>, error: &Error, failures: &[Error]) -> PyResult<Bound<'py, PyAny>> {
    let make = py.import("stdchk._errors")?.getattr("make")?;
    let one = |error: &Error| {
        let facts = PyDict::new(py);
        facts.set_item("code", code(error.code))?;
        facts.set_item("object", &error.object)?;
        facts.set_item("cause", &error.cause)?;
        facts.set_item("next_step", &error.next)?;
        Ok::<_, PyErr>(facts)
    };
    let failures = failures.iter().map(one).collect::<PyResult<Vec<_>>>()?;
    make.call1((one(error)?, failures))
}

/// The code as it stands in JSON.
fn code(code: Code) -> String {
    match serde_json::to_value(code) {
        Ok(Value::String(text)) => text,
        _ => "other".to_owned(),
    }
}
